{{/*
The environment of every Ray process, head and workers alike: Ray Serve reads its fast path at
import. Values are those of cluster/environment.py for the same config.
*/}}

{{- define "paceline.fastPath" -}}
{{- $c := include "paceline.config" . | fromYaml -}}
{{- $v := $c.verifiers | default dict -}}
{{- $p := $c.ports | default dict -}}
RAY_SERVE_ENABLE_HA_PROXY: "1"
RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING: "1"
RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY: "1"
RAY_SERVE_THROUGHPUT_OPTIMIZED: "1"
RAY_SERVE_SESSION_ID_HEADER_KEY: {{ ($c.router).shown_header | default (ternary "authorization" "x-session-id" (not (empty ($c.front_door).keys))) }}
RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S: {{ hasKey $v "drain_s" | ternary $v.drain_s 5 | int | quote }}
RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT: {{ $p.replicas_from | default 30000 | int | quote }}
RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT: {{ $p.replicas_to | default 31000 | int | quote }}
RAY_SERVE_HAPROXY_METRICS_PORT: {{ $p.haproxy_metrics | default 9101 | int | quote }}
RAY_SERVE_HAPROXY_STATS_PORT: {{ $p.haproxy_stats | default 8404 | int | quote }}
RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE: {{ mul (($c.router).seen_kib | default 256) 1024 | quote }}
RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S: {{ add ($v.longest_stream_s | default 600) 60 | quote }}
RAY_SERVE_HAPROXY_RETRY_ON: conn-failure empty-response
RAY_SERVE_HAPROXY_RETRIES: "1"
RAYLLM_ENGINE_START_TIMEOUT_S: {{ $v.start_timeout_s | default 1800 | int | quote }}
RAY_USAGE_STATS_ENABLED: "0"
RAYLLM_ENABLE_REQUEST_PROMPT_LOGS: "0"
RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE: "1"
RAY_metrics_report_interval_ms: "5000"
RAY_SERVE_CONTROL_LOOP_INTERVAL_S: "0.5"
HF_HUB_OFFLINE: "1"
{{- if eq (($c.hardware).kind | default "gpu") "gpu" }}
VLLM_USE_RAY_V2_EXECUTOR_BACKEND: "1"
{{- end }}
{{- end -}}

{{/* Names that `extraEnv` must leave alone: the fast path's, and what KubeRay sets itself. */}}
{{- define "paceline.reservedVariables" -}}
{{- $names := keys (include "paceline.fastPath" . | fromYaml) -}}
{{- concat $names (list "PACELINE_REDIS_PASSWORD" "REDIS_PASSWORD" "RAY_REDIS_ADDRESS" "RAY_AUTH_MODE" "RAY_AUTH_TOKEN" "RAY_enable_autoscaler_v2") | sortAlpha | toJson -}}
{{- end -}}

{{/* dict "root" $ "extra" list */}}
{{- define "paceline.commonEnv" -}}
{{- range $name, $value := include "paceline.fastPath" .root | fromYaml }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- if or .root.Values.redis.enabled .root.Values.redis.existingSecret }}
- name: PACELINE_REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "paceline.redisSecret" .root }}
      key: {{ .root.Values.redis.existingSecretKey }}
{{- end }}
{{- range .root.Values.secretEnv }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end }}
{{- with concat .root.Values.extraEnv .extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}
