{{/*
What can't be about `cluster` alone. `paceline check` refuses it, too, in its own words
(configs/checks); what only it can see, the weights' own files first of all, it refuses in the
cluster before an install or upgrade (preflight.yaml).
*/}}
{{- define "paceline.refuseModel" -}}
{{- $c := .Values.cluster -}}
{{- $p := list -}}
{{- $v := $c.verifiers | default dict -}}
{{- $h := $c.hardware | default dict -}}
{{- $kind := $h.kind | default "gpu" -}}
{{- $perNode := $h.gpus_per_node | default 8 | int -}}
{{- $ranks := $v.tensor_parallel | default 1 | int -}}
{{- with $c.model.shape -}}
  {{- $kv := .kv_heads | int -}}
  {{- if or (mod .attention_heads $ranks) (and (mod $kv $ranks) (mod $ranks $kv)) -}}
    {{- $p = append $p (printf "cluster.verifiers.tensor_parallel: %d ranks cannot share %v attention heads and %d KV heads evenly" $ranks .attention_heads $kv) -}}
  {{- end -}}
  {{- if gt ($v.pipeline_parallel | default 1 | int) (int .layers) -}}
    {{- $p = append $p (printf "cluster.verifiers.pipeline_parallel: %v stages cannot share %v layers" $v.pipeline_parallel .layers) -}}
  {{- end -}}
{{- end -}}
{{- if and (eq $kind "gpu") (gt $ranks $perNode) (mod $ranks $perNode) -}}
  {{- $p = append $p (printf "cluster.verifiers.tensor_parallel: %d ranks do not fill nodes of %d GPUs (cluster.hardware.gpus_per_node)" $ranks $perNode) -}}
{{- end -}}
{{- if eq $kind "cpu" -}}
  {{- range list "gpu_type" "gpu_memory_gib" -}}
    {{- if index $h . }}{{ $p = append $p (printf "cluster.hardware.%s: is not used by hardware.kind cpu; remove it" .) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if and $v.max_batched_tokens $v.max_sequences (lt (int $v.max_batched_tokens) (int $v.max_sequences)) -}}
  {{- $p = append $p (printf "cluster.verifiers.max_batched_tokens: %d tokens in a step are fewer than its sequences, %d" (int $v.max_batched_tokens) (int $v.max_sequences)) -}}
{{- end -}}
{{- $unit := eq $kind "cpu" | ternary 32 16 -}}
{{- $block := ($v.kv_cache).block_size | default $unit | int -}}
{{- if mod $block $unit -}}
  {{- $p = append $p (printf "cluster.verifiers.kv_cache.block_size: %d is not a multiple of %d, as a %s needs" $block $unit (upper $kind)) -}}
{{- end -}}
{{- $names := dict $c.model.name "the model" -}}
{{- range $i, $adapter := $c.model.adapters -}}
  {{- if hasKey $names $adapter.name }}{{ $p = append $p (printf "cluster.model.adapters[%d].name: %s is the name of %s; use another" $i $adapter.name (index $names $adapter.name)) }}{{ end -}}
  {{- $_ := set $names $adapter.name (printf "model.adapters[%d]" $i) -}}
{{- end -}}
{{- with $c.autoscaling -}}
  {{- $window := .window_s | default 60 | float64 -}}
  {{- $keep := .keep_s | default 120 | float64 -}}
  {{- if lt $keep $window }}{{ $p = append $p (printf "cluster.autoscaling.keep_s: %v s is shorter than autoscaling.window_s, %v s; raise it" $keep $window) }}{{ end -}}
  {{- if and .max_draft_workers (not (kindIs "map" ($c.drafting).split)) }}{{ $p = append $p "cluster.autoscaling.max_draft_workers: is for drafting.split, which there is not; remove it or add that" }}{{ end -}}
{{- end -}}
{{- if and (eq (($c.router).policy | default "") "prefix_aware") ($c.front_door).keys (eq (($c.router).shown_header | default "") "x-session-id") -}}
  {{- $p = append $p "cluster.router.shown_header: with front_door.keys the router must be shown the keys; leave it out" -}}
{{- end -}}
{{- range list "address" "token" -}}
  {{- if index ($c.ray | default dict) . }}{{ $p = append $p (printf "cluster.ray.%s: the chart makes the Ray cluster; remove it" .) }}{{ end -}}
{{- end -}}
{{- toJson $p -}}
{{- end -}}

{{- define "paceline.refuseDrafting" -}}
{{- $c := .Values.cluster -}}
{{- $p := list -}}
{{- $d := $c.drafting | default dict -}}
{{- if and $d.colocated (kindIs "map" $d.split) }}{{ $p = append $p "cluster.drafting: has both colocated and split; remove one of them" }}{{ end -}}
{{- with $d.colocated -}}
  {{- $weightless := has .method (list "ngram" "ngram_gpu" "suffix") -}}
  {{- if and (not $weightless) (ne .method "mtp") (not .draft) -}}
    {{- $p = append $p (printf "cluster.drafting.colocated.draft: is missing: %s needs weights; add a draft.source" .method) -}}
  {{- end -}}
  {{- if and $weightless .draft -}}
    {{- $p = append $p (printf "cluster.drafting.colocated.draft: is not used: %s has no weights; remove it" .method) -}}
  {{- end -}}
  {{- if and (has .method (list "ngram_gpu" "suffix")) (eq (($c.hardware).kind | default "gpu") "cpu") -}}
    {{- $p = append $p (printf "cluster.drafting.colocated.method: %s needs a GPU; use ngram on a CPU" .method) -}}
  {{- end -}}
  {{- if gt (.prompt_lookup_min | default 2 | int) (.prompt_lookup_max | default 4 | int) -}}
    {{- $p = append $p "cluster.drafting.colocated.prompt_lookup_min: is more than prompt_lookup_max" -}}
  {{- end -}}
{{- end -}}
{{- $longest := $d.max_length | default 4 | int -}}
{{- range $class, $wish := $d.classes -}}
  {{- if and (not (kindIs "string" $wish)) (not (kindIs "invalid" $wish)) (gt (int $wish) $longest) -}}
    {{- $p = append $p (printf "cluster.drafting.classes.%s: %d is more than drafting.max_length, %d" $class (int $wish) $longest) -}}
  {{- end -}}
{{- end -}}
{{- $w := ($d.split).workers | default dict -}}
{{- if ne (len ($w.kinds | default list)) (len (uniq ($w.kinds | default list))) }}{{ $p = append $p "cluster.drafting.split.workers.kinds: one is listed twice; remove it" }}{{ end -}}
{{- $model := has "model" ($w.kinds | default list) -}}
{{- $gpus := $w.gpus | default 0 | float64 -}}
{{- $at := "cluster.drafting.split.workers" -}}
{{- if and $model (not $w.draft) }}{{ $p = append $p (print $at ".draft: is missing: kind model needs weights; add the section") }}{{ end -}}
{{- if and (not $model) $w.draft }}{{ $p = append $p (print $at ".draft: is not used; remove it, or add `model` to kinds") }}{{ end -}}
{{- if and (gt $gpus 1.0) (ne $gpus (floor $gpus)) }}{{ $p = append $p (printf "%s.gpus: %v is neither a part of one GPU nor whole GPUs" $at $gpus) }}{{ end -}}
{{- if and (gt $gpus 0.0) (eq (($c.hardware).kind | default "gpu") "cpu") -}}
  {{- $p = append $p (print $at ".gpus: there are none on hardware.kind cpu; set it to 0") -}}
{{- else if and (gt $gpus 0.0) (not $model) -}}
  {{- $p = append $p (print $at ".gpus: only kind model uses a GPU; set it to 0") -}}
{{- end -}}
{{- toJson $p -}}
{{- end -}}

{{- define "paceline.refuseKv" -}}
{{- $c := .Values.cluster -}}
{{- $p := list -}}
{{- $unit := eq (($c.hardware).kind | default "gpu") "cpu" | ternary 32 16 -}}
{{- $block := (($c.verifiers).kv_cache).block_size | default $unit | int -}}
{{- $kv := $c.kv | default dict -}}
{{- $order := dict "dram" 0 "disk" 1 "redis" 2 -}}
{{- $kinds := list -}}
{{- $last := -1 -}}
{{- $sorted := true -}}
{{- range $i, $tier := $kv.tiers -}}
  {{- $at := printf "cluster.kv.tiers[%d]" $i -}}
  {{- if and (ne $tier.kind "redis") (not $tier.size_gib) }}{{ $p = append $p (printf "%s.size_gib: is missing: a %s tier needs its size" $at $tier.kind) }}{{ end -}}
  {{- if and (eq $tier.kind "disk") (not $tier.path) }}{{ $p = append $p (print $at ".path: is missing: a disk tier needs a folder") }}{{ end -}}
  {{- if and (ne $tier.kind "disk") $tier.path }}{{ $p = append $p (printf "%s.path: is not used: a %s tier has none; remove it" $at $tier.kind) }}{{ end -}}
  {{- if has $tier.kind $kinds }}{{ $p = append $p (printf "%s.kind: there is a %s tier already; keep one" $at $tier.kind) }}{{ end -}}
  {{- if lt (int (index $order $tier.kind)) $last }}{{ $sorted = false }}{{ end -}}
  {{- $last = int (index $order $tier.kind) -}}
  {{- $kinds = append $kinds $tier.kind -}}
{{- end -}}
{{- if not $sorted }}{{ $p = append $p (printf "cluster.kv.tiers: are %s; put the nearest first: dram, disk, redis" (join ", " $kinds)) }}{{ end -}}
{{- if $kv.shared -}}
  {{- $chunk := $kv.chunk_size | default 256 | int -}}
  {{- if mod $chunk $block }}{{ $p = append $p (printf "cluster.kv.chunk_size: %d is not a multiple of the block size, %d" $chunk $block) }}{{ end -}}
  {{- if and (hasKey $kv "tiers") (not (has "dram" $kinds)) }}{{ $p = append $p "cluster.kv.tiers: have no dram tier, through which LMCache moves all blocks; add one" }}{{ end -}}
{{- end -}}
{{- toJson $p -}}
{{- end -}}

{{- define "paceline.refusePorts" -}}
{{- $p := list -}}
{{- $seen := dict -}}
{{- range $name, $port := .Values.cluster.ports -}}
  {{- if and (not (kindIs "string" $port)) (not (kindIs "invalid" $port)) (not (hasSuffix "_from" $name)) (not (hasSuffix "_to" $name)) -}}
    {{- $key := print (int $port) -}}
    {{- if hasKey $seen $key }}{{ $p = append $p (printf "cluster.ports.%s: %s is cluster.ports.%s already" $name $key (index $seen $key)) }}{{ end -}}
    {{- $_ := set $seen $key $name -}}
  {{- end -}}
{{- end -}}
{{- /* What Ray has in every pod: its store, dashboard, client server, agent, and its metrics. */ -}}
{{- $rays := list 6379 8265 10001 52365 44217 44227 -}}
{{- range $name := list "http" "metrics" "haproxy_metrics" "haproxy_stats" -}}
  {{- $port := index ($.Values.cluster.ports | default dict) $name -}}
  {{- if has (int $port) $rays }}{{ $p = append $p (printf "cluster.ports.%s: Ray has %d in its pods; use another" $name (int $port)) }}{{ end -}}
{{- end -}}
{{- toJson $p -}}
{{- end -}}
