{{/* Redis' settings; the password is added when it starts. */}}
{{- define "paceline.redisConfig" -}}
bind * -::*
port 6379
protected-mode yes
include /run/redis/password.conf
dir /data
save ""
appendonly {{ .Values.redis.persistence.enabled | ternary "yes" "no" }}
appendfsync everysec
maxmemory {{ ((.Values.cluster.redis).memory_mib | default 256) | int }}mb
# Redis' own evictions are announced to nobody, so it must not evict.
maxmemory-policy noeviction
{{- end -}}

{{/*
A secret of one random value, made once: upgrades and a second install find it and keep it.
dict "root" $ "name" ... "component" ... "key" ...
*/}}
{{- define "paceline.keptSecret" -}}
{{- $there := (lookup "v1" "Secret" .root.Release.Namespace .name).data | default dict -}}
apiVersion: v1
kind: Secret
metadata:
  {{- include "paceline.metadata" (dict "root" .root "name" .name "component" .component "annotations" (dict "helm.sh/resource-policy" "keep")) | nindent 2 }}
type: Opaque
data:
  {{ .key }}: {{ index $there .key | default (randAlphaNum 48 | b64enc) }}
{{- end -}}
