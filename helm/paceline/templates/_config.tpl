{{/*
The config that the application gets, and the sizes that follow from it.

`paceline.config` is `cluster` with what only the chart knows filled in where it is left out.
`paceline.sizes` says how many pods of which size it needs.
*/}}

{{- define "paceline.secretsFolder" -}}/etc/paceline/secrets{{- end -}}
{{- define "paceline.builtinFolder" -}}/var/lib/paceline/models{{- end -}}

{{/* Whether parts of the cluster know each other by a token of the chart's. */}}
{{- define "paceline.needsToken" -}}
{{- $c := .Values.cluster -}}
{{- $talks := or (kindIs "map" ($c.drafting).split) (eq (($c.router).policy | default "") "prefix_aware") (($c.kv).shared) -}}
{{- if and $talks (not ((($c.drafting).split).token)) (not (($c.router).token)) }}yes{{ end -}}
{{- end -}}

{{- define "paceline.config" -}}
{{- $c := deepCopy .Values.cluster -}}
{{- $given := dict "ports" (dict "host" "0.0.0.0") -}}
{{- if .Values.redis.enabled -}}
{{- $url := printf "redis://%s-redis.%s.svc:6379" (include "paceline.fullname" .) .Release.Namespace -}}
{{- $_ := set $given "redis" (dict "url" $url "password" (dict "env" "PACELINE_REDIS_PASSWORD")) -}}
{{- else if .Values.redis.existingSecret -}}
{{- $_ := set $given "redis" (dict "password" (dict "env" "PACELINE_REDIS_PASSWORD")) -}}
{{- end -}}
{{- if include "paceline.needsToken" . -}}
{{- $file := printf "%s/cluster-token" (include "paceline.secretsFolder" .) -}}
{{- $_ := set $given "router" (dict "token" (dict "file" $file)) -}}
{{- end -}}
{{- if hasPrefix "builtin:" (($c.model).source | default "") -}}
{{- $_ := set $given "folders" (dict "models" (include "paceline.builtinFolder" .)) -}}
{{- end -}}
{{- /* A rank or draft worker runs where its group announces a place for it. */ -}}
{{- $_ := set $given "verifiers" (dict "resources" (dict "verifier_rank" 1)) -}}
{{- if kindIs "map" ($c.drafting).split -}}
{{- $_ := set $given "drafting" (dict "split" (dict "workers" (dict "resources" (dict "draft_worker" 1)))) -}}
{{- end -}}
{{- range $key, $value := $given -}}
{{- if kindIs "invalid" (index $c $key) }}{{- $_ := unset $c $key -}}{{ end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $given $c) -}}
{{- end -}}

{{/*
Pods by group, as YAML: ranks of a verifier, ranks in a pod, hosts of a verifier, verifiers in a
pod, and the fewest and most pods (a multi-host verifier counts as one).
*/}}
{{- define "paceline.sizes" -}}
{{- $c := include "paceline.config" . | fromYaml -}}
{{- $v := $c.verifiers | default dict -}}
{{- $gpu := eq (($c.hardware).kind | default "gpu") "gpu" -}}
{{- $ranks := mul ($v.tensor_parallel | default 1) ($v.pipeline_parallel | default 1) | int -}}
{{- $fewest := $v.replicas | default 1 | int -}}
{{- $most := (($c.autoscaling).max_verifiers | default $fewest) | int -}}
{{- $perNode := $gpu | ternary (($c.hardware).gpus_per_node | default 8 | int) $ranks -}}
{{- $perPod := .Values.verifiers.ranksPerPod | default (min $perNode (mul $most $ranks)) | int -}}
{{- $hosts := gt $ranks $perPod | ternary (div $ranks $perPod) 1 | int -}}
{{- $together := gt $ranks $perPod | ternary 1 (div $perPod $ranks) | int -}}
{{- $workers := (($c.drafting).split).workers | default dict -}}
{{- $split := kindIs "map" ($c.drafting).split -}}
{{- $fewestDrafting := hasKey $workers "replicas" | ternary $workers.replicas 1 | int -}}
{{- $mostDrafting := (($c.autoscaling).max_draft_workers | default $fewestDrafting) | int -}}
{{- $perDraftPod := .Values.draftWorkers.perPod | int -}}
gpu: {{ $gpu }}
ranks: {{ $ranks }}
ranksPerPod: {{ $perPod }}
hosts: {{ $hosts }}
verifiersPerPod: {{ $together }}
rankCpus: {{ $v.cpus | default 1 }}
minPods: {{ divf $fewest $together | ceil | int }}
maxPods: {{ divf $most $together | ceil | int }}
draft: {{ and $split (gt $mostDrafting 0) }}
minDraftPods: {{ divf $fewestDrafting $perDraftPod | ceil | int }}
maxDraftPods: {{ divf $mostDrafting $perDraftPod | ceil | int }}
draftCpus: {{ mulf (hasKey $workers "cpus" | ternary $workers.cpus 1) $perDraftPod | ceil | int }}
draftGpus: {{ mulf ($workers.gpus | default 0) $perDraftPod | ceil | int }}
drainSeconds: {{ add (hasKey $v "drain_s" | ternary $v.drain_s 5) ($v.longest_stream_s | default 600) }}
{{- end -}}

{{/* Whether KubeRay's autoscaler runs. */}}
{{- define "paceline.autoscales" -}}
{{- $sizes := include "paceline.sizes" . | fromYaml -}}
{{- $wanted := or (gt $sizes.maxPods $sizes.minPods) (gt $sizes.maxDraftPods $sizes.minDraftPods) (eq (include "paceline.upgradeMode" .) "NewClusterWithIncrementalUpgrade") -}}
{{- if kindIs "bool" .Values.rayAutoscaler.enabled | ternary .Values.rayAutoscaler.enabled $wanted }}yes{{ end -}}
{{- end -}}
