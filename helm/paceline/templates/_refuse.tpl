{{/*
Values that are possible one by one and not together. All of them are told at once, each with its
key. What is about `cluster` alone is in _refuse_cluster.tpl.
*/}}
{{- define "paceline.refuse" -}}
{{- $problems := concat (include "paceline.refuseModel" . | fromJsonArray) (include "paceline.refuseDrafting" . | fromJsonArray) (include "paceline.refuseKv" . | fromJsonArray) (include "paceline.refusePorts" . | fromJsonArray) (include "paceline.refusePods" . | fromJsonArray) (include "paceline.refuseRelease" . | fromJsonArray) (include "paceline.refuseSecrets" . | fromJsonArray) -}}
{{- if $problems -}}
{{- fail (printf "these values can't work:\n  %s" (join "\n  " $problems)) -}}
{{- end -}}
{{- end -}}

{{- define "paceline.refusePods" -}}
{{- $c := .Values.cluster -}}
{{- $sizes := include "paceline.sizes" . | fromYaml -}}
{{- $p := list -}}
{{- if and (gt $sizes.ranks $sizes.ranksPerPod) (mod $sizes.ranks $sizes.ranksPerPod) -}}
  {{- $p = append $p (printf "verifiers.ranksPerPod: the %v ranks of a verifier do not fill pods of %v; use a divisor or a multiple" $sizes.ranks $sizes.ranksPerPod) -}}
{{- end -}}
{{- if and $sizes.gpu (gt (int $sizes.ranksPerPod) (($c.hardware).gpus_per_node | default 8 | int)) -}}
  {{- $p = append $p (printf "verifiers.ranksPerPod: %v GPUs are more than a node has (cluster.hardware.gpus_per_node)" $sizes.ranksPerPod) -}}
{{- end -}}
{{- if and (not $sizes.gpu) (gt $sizes.hosts 1.0) -}}
  {{- $p = append $p "verifiers.ranksPerPod: on CPUs the ranks of a verifier share one pod" -}}
{{- end -}}
{{- if or (gt $sizes.minPods $sizes.maxPods) (gt $sizes.minDraftPods $sizes.maxDraftPods) -}}
  {{- $p = append $p "cluster.autoscaling: its most are fewer than `replicas`, which are the fewest" -}}
{{- end -}}
{{- if and (kindIs "bool" .Values.rayAutoscaler.enabled) (not .Values.rayAutoscaler.enabled) -}}
  {{- if or (ne $sizes.minPods $sizes.maxPods) (ne $sizes.minDraftPods $sizes.maxDraftPods) -}}
    {{- $p = append $p "rayAutoscaler.enabled: false, but cluster.autoscaling asks for more pods at times; leave it out" -}}
  {{- else if eq (include "paceline.upgradeMode" .) "NewClusterWithIncrementalUpgrade" -}}
    {{- $p = append $p "rayAutoscaler.enabled: false, but upgrade.mode NewClusterWithIncrementalUpgrade needs it; leave it out" -}}
  {{- end -}}
{{- end -}}
{{- $folders := 0 -}}
{{- range list .Values.models.existingClaim .Values.models.claim.create .Values.models.hostPath .Values.models.volume -}}
  {{- if . }}{{ $folders = add1 $folders }}{{ end -}}
{{- end -}}
{{- if gt $folders 1 -}}
  {{- $p = append $p "models: name one of existingClaim, claim.create, hostPath and volume, not several" -}}
{{- end -}}
{{- $sources := dict "cluster.model.source" $c.model.source "cluster.drafting.colocated.draft.source" ((($c.drafting).colocated).draft).source "cluster.drafting.split.workers.draft.source" (((($c.drafting).split).workers).draft).source -}}
{{- range $i, $adapter := $c.model.adapters }}{{ $_ := set $sources (printf "cluster.model.adapters[%d].source" $i) $adapter.source }}{{ end -}}
{{- range $key, $source := $sources -}}
  {{- if and $source (not (hasPrefix "builtin:" $source)) -}}
    {{- if not (hasPrefix "/" $source) -}}
      {{- $p = append $p (printf "%s: %s is no full path; pods reach no model hub, so name a folder under models.mountPath" $key $source) -}}
    {{- else if and (hasPrefix (print (trimSuffix "/" $.Values.models.mountPath) "/") $source) (eq $folders 0) -}}
      {{- $p = append $p (printf "%s: nothing is mounted at %s; name models.existingClaim, claim.create, hostPath or volume" $key $.Values.models.mountPath) -}}
    {{- else if not (include "paceline.isMounted" (dict "root" $ "path" $source)) -}}
      {{- $p = append $p (printf "%s: %s is on no volume: put it under models.mountPath (%s), or mount it by verifiers.extraVolumeMounts" $key $source $.Values.models.mountPath) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if include "paceline.kvDiskPath" . -}}
  {{- if not (or .Values.kvDisk.hostPath .Values.kvDisk.volume) -}}
    {{- $p = append $p "kvDisk: cluster.kv has a disk tier, so it needs hostPath or volume" -}}
  {{- end -}}
{{- else if or .Values.kvDisk.hostPath .Values.kvDisk.volume -}}
  {{- $p = append $p "kvDisk: is not used: cluster.kv shares no blocks, or has no disk tier" -}}
{{- end -}}
{{- $reserved := include "paceline.reservedVariables" . | fromJsonArray -}}
{{- range $key, $list := dict "extraEnv" .Values.extraEnv "head.extraEnv" .Values.head.extraEnv "verifiers.extraEnv" .Values.verifiers.extraEnv "draftWorkers.extraEnv" .Values.draftWorkers.extraEnv -}}
  {{- range $list -}}
    {{- if has .name $reserved }}{{ $p = append $p (printf "%s: %s is set by the chart or by KubeRay; remove it" $key .name) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- toJson $p -}}
{{- end -}}

{{- define "paceline.isMounted" -}}
{{- $paths := list .root.Values.models.mountPath -}}
{{- range .root.Values.verifiers.extraVolumeMounts }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- $path := .path -}}
{{- range $paths -}}{{- if or (eq $path .) (hasPrefix (print (trimSuffix "/" .) "/") $path) }}yes{{ end -}}{{- end -}}
{{- end -}}

{{- define "paceline.refuseRelease" -}}
{{- $p := list -}}
{{- $name := include "paceline.fullname" . -}}
{{- if or (gt (len $name) 47) (not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name)) -}}
  {{- $p = append $p (printf "fullnameOverride: %q is no name for a RayService: at most 47 lower-case letters, digits and dashes, a letter first" $name) -}}
{{- end -}}
{{- if and .Values.redis.enabled (gt (len $name) 46) -}}
  {{- $p = append $p (printf "fullnameOverride: %q leaves no room for the names of Redis' pods: at most 46 characters with redis.enabled" $name) -}}
{{- end -}}
{{- range $key, $image := dict "image" .Values.image "redis.image" .Values.redis.image -}}
  {{- if eq $image.tag "latest" }}{{ $p = append $p (printf "%s.tag: latest means another image on another day; name a version or a digest" $key) }}{{ end -}}
{{- end -}}
{{- if eq (include "paceline.upgradeMode" .) "NewClusterWithIncrementalUpgrade" -}}
  {{- range list "ingress" "httpRoute" -}}
    {{- if (index $.Values .).enabled }}{{ $p = append $p (printf "%s.enabled: true, but with upgrade.mode NewClusterWithIncrementalUpgrade KubeRay makes the Gateway %s-gateway and its routes, and only they reach the service; set it to false" . $name) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}{{ $p = append $p "ingress.hosts: is empty; name at least one" }}{{ end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}{{ $p = append $p "httpRoute.parentRefs: is empty; name the gateway" }}{{ end -}}
{{- if and (or .Values.ingress.enabled .Values.httpRoute.enabled) (not (.Values.cluster.front_door).keys) (not .Values.allowAnonymous) -}}
  {{- $p = append $p "cluster.front_door.keys: is missing, and the service is reachable from outside; name keys, or set allowAnonymous" -}}
{{- end -}}
{{- $host := (.Values.cluster.ports).host -}}
{{- if has $host (list "127.0.0.1" "localhost" "::1") -}}
  {{- $p = append $p (printf "cluster.ports.host: %s is reached by no other pod; leave it out" $host) -}}
{{- end -}}
{{- with .Values.upgrade -}}
  {{- if eq (include "paceline.upgradeMode" $) "NewClusterWithIncrementalUpgrade" -}}
    {{- if not .gatewayClassName }}{{ $p = append $p "upgrade.gatewayClassName: is missing: NewClusterWithIncrementalUpgrade moves traffic by a Gateway" }}{{ end -}}
    {{- if gt (int .stepSizePercent) (int .maxSurgePercent) }}{{ $p = append $p (printf "upgrade.stepSizePercent: %v is more than maxSurgePercent, %v" .stepSizePercent .maxSurgePercent) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if .Values.redis.enabled -}}
  {{- if (.Values.cluster.redis).url }}{{ $p = append $p "cluster.redis.url: there are two Redis then; remove it, or set redis.enabled to false" }}{{ end -}}
  {{- if (.Values.cluster.redis).password }}{{ $p = append $p "cluster.redis.password: the chart's Redis has its own; name it in redis.existingSecret" }}{{ end -}}
{{- else if not (.Values.cluster.redis).url -}}
  {{- $p = append $p "cluster.redis.url: is missing, and redis.enabled is false; the cluster needs a Redis" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.operator) -}}
  {{- $p = append $p "networkPolicy.operator: is empty, so KubeRay could not reach Ray; name its pods" -}}
{{- end -}}
{{- toJson $p -}}
{{- end -}}

{{/* Every secret that the config names must be one that pods are given. */}}
{{- define "paceline.refuseSecrets" -}}
{{- $c := .Values.cluster -}}
{{- $folder := include "paceline.secretsFolder" . -}}
{{- $files := dict -}}
{{- $p := list -}}
{{- if include "paceline.needsToken" . }}{{ $_ := set $files (print $folder "/cluster-token") true }}{{ end -}}
{{- range $i, $file := .Values.secretFiles -}}
  {{- $path := printf "%s/%s" $folder ($file.path | default $file.key) -}}
  {{- if hasKey $files $path }}{{ $p = append $p (printf "secretFiles[%d]: %s is there already; give another path" $i $path) }}{{ end -}}
  {{- $_ := set $files $path true -}}
{{- end -}}
{{- $variables := list -}}
{{- range .Values.secretEnv }}{{ $variables = append $variables .name }}{{ end -}}
{{- if or .Values.redis.enabled .Values.redis.existingSecret }}{{ $variables = append $variables "PACELINE_REDIS_PASSWORD" }}{{ end -}}
{{- $named := dict "front_door.keys" ($c.front_door).keys "front_door.domain_salt" ($c.front_door).domain_salt "redis.password" ($c.redis).password "router.token" ($c.router).token "drafting.split.token" (($c.drafting).split).token "kv.token" ($c.kv).token -}}
{{- range $key, $ref := $named -}}
  {{- if and ($ref).file (not (hasKey $files $ref.file)) -}}
    {{- $p = append $p (printf "cluster.%s.file: no pod has %s; secretFiles puts keys of secrets into %s" $key $ref.file $folder) -}}
  {{- end -}}
  {{- if and ($ref).env (not (has $ref.env $variables)) -}}
    {{- $p = append $p (printf "cluster.%s.env: no pod has the variable %s; add it to secretEnv" $key $ref.env) -}}
  {{- end -}}
{{- end -}}
{{- toJson $p -}}
{{- end -}}
