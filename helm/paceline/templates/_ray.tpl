{{/*
The Ray cluster of the RayService. dict "root" $ "mark" what its head is annotated with
*/}}
{{- define "paceline.rayCluster" -}}
{{- $root := .root -}}
{{- include "paceline.refuse" $root -}}
{{- $c := include "paceline.config" $root | fromYaml -}}
{{- $sizes := include "paceline.sizes" $root | fromYaml -}}
{{- $ports := $c.ports | default dict -}}
{{- $autoscales := include "paceline.autoscales" $root -}}
rayVersion: {{ $root.Values.rayVersion | quote }}
{{- if $root.Values.rayToken.enabled }}
authOptions:
  mode: token
  secretName: {{ include "paceline.rayTokenSecret" $root }}
{{- end }}
{{- if $root.Values.gcsFaultTolerance.enabled }}
gcsFaultToleranceOptions:
  redisAddress: {{ trimPrefix "redis://" $c.redis.url | quote }}
  {{- if or $root.Values.redis.enabled $root.Values.redis.existingSecret }}
  redisPassword:
    valueFrom:
      secretKeyRef:
        name: {{ include "paceline.redisSecret" $root }}
        key: {{ $root.Values.redis.existingSecretKey }}
  {{- end }}
{{- end }}
{{- if $autoscales }}
enableInTreeAutoscaling: true
autoscalerOptions:
  version: v2
  idleTimeoutSeconds: {{ $root.Values.rayAutoscaler.idleTimeoutSeconds }}
  upscalingMode: {{ $root.Values.rayAutoscaler.upscalingMode }}
  securityContext:
    {{- toYaml $root.Values.containerSecurityContext | nindent 4 }}
  resources:
    requests: {cpu: 500m, memory: 1Gi}
    limits: {cpu: 500m, memory: 1Gi}
{{- end }}
headGroupSpec:
  rayStartParams:
    # Neither verifiers nor draft workers run on the head.
    num-cpus: "0"
    num-gpus: "0"
    object-store-memory: "536870912"
    dashboard-host: 0.0.0.0
    metrics-export-port: {{ $ports.metrics | default 8080 | int | quote }}
  template:
    {{- include "paceline.podTemplate" (dict "root" $root "component" "head" "group" $root.Values.head "cpu" $root.Values.head.cpu "mark" .mark) | nindent 4 }}
workerGroupSpecs:
  - groupName: verifiers
    replicas: {{ $sizes.minPods }}
    minReplicas: {{ $sizes.minPods }}
    maxReplicas: {{ $sizes.maxPods }}
    numOfHosts: {{ $sizes.hosts }}
    {{- $cpus := mulf $sizes.rankCpus $sizes.ranksPerPod | ceil | int }}
    rayStartParams:
      num-cpus: {{ $cpus | quote }}
      num-gpus: {{ $sizes.gpu | ternary $sizes.ranksPerPod 0 | int | quote }}
      object-store-memory: "536870912"
      resources: {{ dict "verifier_rank" ($sizes.ranksPerPod | int) | toJson | quote | squote }}
      metrics-export-port: {{ $ports.metrics | default 8080 | int | quote }}
    template:
      {{- $gpus := $sizes.gpu | ternary $sizes.ranksPerPod 0 | int }}
      {{- include "paceline.podTemplate" (dict "root" $root "component" "verifier" "group" $root.Values.verifiers "cpu" (addf $cpus $root.Values.verifiers.extraCpu) "gpus" $gpus) | nindent 6 }}
  {{- if $sizes.draft }}
  - groupName: draft-workers
    replicas: {{ $sizes.minDraftPods }}
    minReplicas: {{ $sizes.minDraftPods }}
    maxReplicas: {{ $sizes.maxDraftPods }}
    numOfHosts: 1
    rayStartParams:
      num-cpus: {{ $sizes.draftCpus | int | quote }}
      num-gpus: {{ $sizes.draftGpus | int | quote }}
      object-store-memory: "268435456"
      resources: {{ dict "draft_worker" ($root.Values.draftWorkers.perPod | int) | toJson | quote | squote }}
      metrics-export-port: {{ $ports.metrics | default 8080 | int | quote }}
    template:
      {{- include "paceline.podTemplate" (dict "root" $root "component" "draft-worker" "group" $root.Values.draftWorkers "cpu" (addf $sizes.draftCpus $root.Values.draftWorkers.extraCpu) "gpus" ($sizes.draftGpus | int)) | nindent 6 }}
  {{- end }}
{{- end -}}

{{/* Names what Ray's pods are, whatever their number: another mark is another cluster. */}}
{{- define "paceline.rayClusterMark" -}}
{{- $cluster := include "paceline.rayCluster" (dict "root" . "mark" "") | fromYaml -}}
{{- range $cluster.workerGroupSpecs -}}
{{- $_ := unset . "replicas" }}{{ $_ = unset . "minReplicas" }}{{ $_ = unset . "maxReplicas" -}}
{{- end -}}
{{- toJson $cluster | sha256sum | trunc 16 -}}
{{- end -}}
