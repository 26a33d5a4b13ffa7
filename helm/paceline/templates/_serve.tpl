{{/* The Serve config: what `serve deploy` would take. docs/deploy.md */}}
{{- define "paceline.serveConfig" -}}
{{- $c := include "paceline.config" . | fromYaml -}}
proxy_location: EveryNode
http_options:
  host: {{ $c.ports.host | quote }}
  port: {{ $c.ports.http | default 8000 | int }}
applications:
  - name: {{ $c.name | default "paceline" }}
    import_path: cluster.app:build_app
    route_prefix: /
    {{- if $c.autoscaling }}
    autoscaling_policy:
      policy_function: cluster.autoscaling:ScalingPolicy
      policy_kwargs:
        config:
          {{- include "paceline.config" . | nindent 10 }}
    {{- end }}
    args:
      {{- include "paceline.config" . | nindent 6 }}
{{- end -}}
