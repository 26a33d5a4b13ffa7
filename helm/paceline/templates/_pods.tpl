{{/*
One Ray pod. KubeRay starts Ray in it, adds its probes and waits for the head; the chart says
everything else.
*/}}

{{/* dict "root" $ "component" ... "group" values "cpu" ... "gpus" ... "mark" ... */}}
{{- define "paceline.podTemplate" -}}
{{- $root := .root -}}
{{- $name := include "paceline.fullname" $root -}}
{{- $c := include "paceline.config" $root | fromYaml -}}
{{- $sizes := include "paceline.sizes" $root | fromYaml -}}
{{- $ports := $c.ports | default dict -}}
{{- $grace := eq .component "head" | ternary 60 (add $sizes.drainSeconds 60) -}}
metadata:
  labels:
    {{- include "paceline.podLabels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  {{- $annotations := merge (dict) .group.annotations $root.Values.commonAnnotations }}
  {{- $sharesKv := and (eq .component "verifier") ($c.kv).shared }}
  {{- if $sharesKv }}
  {{- /* LMCache reads its settings when it starts. */}}
  {{- $_ := set $annotations "checksum/kv" (toJson $c.kv | sha256sum) }}
  {{- end }}
  {{- with .mark }}
  {{- $_ := set $annotations "paceline/spec" . }}
  {{- end }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "paceline.serviceAccountName" $root }}
  # KubeRay's autoscaler, on the head, is all that talks to the API server.
  automountServiceAccountToken: {{ and (eq .component "head") (not (empty (include "paceline.autoscales" $root))) }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ $grace }}
  {{- with .group.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .group.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .group.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if hasPrefix "builtin:" $c.model.source }}
  initContainers:
    - name: model
      image: {{ include "paceline.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [python, -m, cluster.models, {{ trimPrefix "builtin:" $c.model.source }}, --folder, {{ include "paceline.builtinFolder" $root }}]
      securityContext:
        {{- toYaml $root.Values.containerSecurityContext | nindent 8 }}
      resources:
        requests: {cpu: "1", memory: 3Gi}
        limits: {cpu: "1", memory: 3Gi}
      volumeMounts:
        - name: builtin-models
          mountPath: {{ include "paceline.builtinFolder" $root }}
  {{- end }}
  containers:
    - name: ray-{{ .component }}
      image: {{ include "paceline.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      securityContext:
        {{- toYaml $root.Values.containerSecurityContext | nindent 8 }}
      {{- if $sharesKv }}
      # KubeRay puts this before its own `ray start`. The node's LMCache server shares memory, GPUs
      # and process ids with the engines.
      args: ["(paceline kv-server /etc/paceline/cluster/cluster.yaml &)"]
      {{- end }}
      ports:
        {{- if eq .component "head" }}
        - {name: gcs-server, containerPort: 6379, protocol: TCP}
        - {name: dashboard, containerPort: 8265, protocol: TCP}
        - {name: client, containerPort: 10001, protocol: TCP}
        - {name: as-metrics, containerPort: 44217, protocol: TCP}
        - {name: dash-metrics, containerPort: 44227, protocol: TCP}
        {{- end }}
        - {name: serve, containerPort: {{ $ports.http | default 8000 | int }}, protocol: TCP}
        - {name: metrics, containerPort: {{ $ports.metrics | default 8080 | int }}, protocol: TCP}
        - {name: proxy-metrics, containerPort: {{ $ports.haproxy_metrics | default 9101 | int }}, protocol: TCP}
      env:
        {{- include "paceline.commonEnv" (dict "root" $root "extra" .group.extraEnv) | trim | nindent 8 }}
      resources:
        {{- $resources := dict "cpu" (print .cpu) "memory" .group.memory }}
        {{- if .gpus }}
        {{- $_ := set $resources .group.gpuResource (print .gpus) }}
        {{- end }}
        # Equal, so that Ray and the scheduler count with the same numbers.
        requests:
          {{- toYaml $resources | nindent 10 }}
        limits:
          {{- toYaml $resources | nindent 10 }}
      # What Ray's agent says of this node. Loading a model takes no part in it.
      livenessProbe:
        httpGet: {path: /api/healthz, port: 52365}
        initialDelaySeconds: 30
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div $root.Values.probes.unhealthySeconds 5 }}
      {{- if ne .component "head" }}
      lifecycle:
        preStop:
          exec:
            command: [python, -m, cluster.leave, "{{ $sizes.drainSeconds }}"]
      {{- end }}
      volumeMounts:
        - name: shm
          mountPath: /dev/shm
        - name: secrets
          mountPath: {{ include "paceline.secretsFolder" $root }}
          readOnly: true
        {{- if hasPrefix "builtin:" $c.model.source }}
        - name: builtin-models
          mountPath: {{ include "paceline.builtinFolder" $root }}
        {{- end }}
        {{- if include "paceline.modelsVolume" $root }}
        - name: models
          mountPath: {{ $root.Values.models.mountPath }}
          readOnly: true
        {{- end }}
        {{- if $sharesKv }}
        - name: cluster
          mountPath: /etc/paceline/cluster
          readOnly: true
        {{- end }}
        {{- if and $sharesKv (include "paceline.kvDiskPath" $root) }}
        - name: kv-disk
          mountPath: {{ include "paceline.kvDiskPath" $root }}
        {{- end }}
        {{- with .group.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .group.shmSize }}}
    - name: secrets
      projected:
        defaultMode: 0440
        {{- if or (include "paceline.needsToken" $root) $root.Values.secretFiles }}
        sources:
          {{- if include "paceline.needsToken" $root }}
          - secret:
              name: {{ include "paceline.clusterTokenSecret" $root }}
              items: [{key: cluster-token, path: cluster-token}]
          {{- end }}
          {{- range $root.Values.secretFiles }}
          - secret:
              name: {{ .secret }}
              items: [{key: {{ .key }}, path: {{ .path | default .key }}}]
          {{- end }}
        {{- else }}
        sources: []
        {{- end }}
    {{- if hasPrefix "builtin:" $c.model.source }}
    - name: builtin-models
      emptyDir: {sizeLimit: 2Gi}
    {{- end }}
    {{- with include "paceline.modelsVolume" $root }}
    - name: models
      {{- . | nindent 6 }}
    {{- end }}
    {{- if $sharesKv }}
    - name: cluster
      configMap: {name: {{ $name }}-cluster}
    {{- end }}
    {{- if and $sharesKv (include "paceline.kvDiskPath" $root) }}
    - name: kv-disk
      {{- if $root.Values.kvDisk.hostPath }}
      hostPath: {path: {{ $root.Values.kvDisk.hostPath }}, type: DirectoryOrCreate}
      {{- else }}
      {{- toYaml $root.Values.kvDisk.volume | nindent 6 }}
      {{- end }}
    {{- end }}
    {{- with .group.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* What pods have in common that run once, on the head's nodes: checks, tests, upgrades. */}}
{{- define "paceline.toolPod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.head.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.head.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.head.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the weights come from; empty where no volume holds them. */}}
{{- define "paceline.modelsVolume" -}}
{{- with .Values.models -}}
{{- if or .existingClaim .claim.create -}}
persistentVolumeClaim: {claimName: {{ include "paceline.modelsClaim" $ }}, readOnly: true}
{{- else if .hostPath -}}
hostPath: {path: {{ .hostPath }}, type: Directory}
{{- else if .volume -}}
{{ toYaml .volume }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The folder of the `disk` tier of shared KV blocks, if there is one. */}}
{{- define "paceline.kvDiskPath" -}}
{{- $kv := .Values.cluster.kv | default dict -}}
{{- if $kv.shared -}}
{{- range $kv.tiers -}}{{- if eq .kind "disk" }}{{ .path }}{{ end -}}{{- end -}}
{{- end -}}
{{- end -}}
