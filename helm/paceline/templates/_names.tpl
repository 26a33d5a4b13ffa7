{{/* Names, labels and images. */}}

{{- define "paceline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Of everything in the release. `paceline.refuse` refuses one that is too long for KubeRay. */}}
{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "paceline.name" .) .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "paceline.name" .) -}}
{{- end -}}
{{- end -}}

{{- define "paceline.selectorLabels" -}}
app.kubernetes.io/name: {{ include "paceline.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "paceline.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "paceline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Of pods: what a new version of the chart does not change, so that it restarts none for nothing. */}}
{{- define "paceline.podLabels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
{{ include "paceline.selectorLabels" . }}
{{- end -}}

{{/* metadata of an object: dict "root" $ "name" ... "component" ... "annotations" {} */}}
{{- define "paceline.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "paceline.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "paceline.image" -}}
{{- $image := .Values.image -}}
{{- $config := include "paceline.config" . | fromYaml -}}
{{- $suffix := eq (($config.hardware).kind | default "gpu") "cpu" | ternary "-cpu" "" -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (print .Chart.AppVersion $suffix)) -}}
{{- end -}}
{{- end -}}

{{- define "paceline.redisImage" -}}
{{- with .Values.redis.image -}}
{{- .digest | empty | ternary (print .repository ":" .tag) (print .repository "@" .digest) -}}
{{- end -}}
{{- end -}}

{{- define "paceline.serviceAccountName" -}}
{{- .Values.serviceAccount.create | ternary (.Values.serviceAccount.name | default (include "paceline.fullname" .)) (.Values.serviceAccount.name | default "default") -}}
{{- end -}}

{{- define "paceline.redisSecret" -}}
{{- .Values.redis.existingSecret | default (printf "%s-redis" (include "paceline.fullname" .)) -}}
{{- end -}}

{{- define "paceline.clusterTokenSecret" -}}
{{- .Values.clusterToken.existingSecret | default (printf "%s-token" (include "paceline.fullname" .)) -}}
{{- end -}}

{{- define "paceline.rayTokenSecret" -}}
{{- .Values.rayToken.existingSecret | default (printf "%s-ray-token" (include "paceline.fullname" .)) -}}
{{- end -}}

{{- define "paceline.modelsClaim" -}}
{{- .Values.models.existingClaim | default (printf "%s-models" (include "paceline.fullname" .)) -}}
{{- end -}}

{{/* How KubeRay upgrades, and what the chart's own job adds to it (files/upgrade.py). */}}
{{- define "paceline.upgradeMode" -}}
{{- $gpu := eq ((.Values.cluster.hardware).kind | default "gpu") "gpu" -}}
{{- .Values.upgrade.mode | default (ternary "Recreate" "NewCluster" $gpu) -}}
{{- end -}}

{{/* The service that answers. For an incremental upgrade KubeRay has one for each Ray cluster, and a
Gateway before them; from inside, all proxies are asked. */}}
{{- define "paceline.serveService" -}}
{{- $incremental := eq (include "paceline.upgradeMode" .) "NewClusterWithIncrementalUpgrade" -}}
{{- include "paceline.fullname" . }}-{{ ternary "verifiers" "serve-svc" $incremental -}}
{{- end -}}

{{- define "paceline.metricsPort" -}}
{{- (.Values.cluster.ports).metrics | default 8080 | int -}}
{{- end -}}

{{- define "paceline.httpPort" -}}
{{- (.Values.cluster.ports).http | default 8000 | int -}}
{{- end -}}
