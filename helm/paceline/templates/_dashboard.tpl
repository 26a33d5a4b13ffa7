{{/*
Grafana's JSON of one page of monitoring/dashboards: two panels a row, each a title, a unit and
queries with legends. `$release` in a query is the release that is looked at.
dict "root" $ "name" ... "page" ...
*/}}
{{- define "paceline.dashboard" -}}
{{- $source := dict "type" "prometheus" "uid" "${source}" -}}
{{- $panels := list -}}
{{- range $i, $panel := .page.panels -}}
  {{- $targets := list -}}
  {{- range $j, $query := $panel.queries -}}
    {{- $targets = append $targets (dict "refId" (print "q" $j) "expr" $query.expr "legendFormat" $query.legend "datasource" $source) -}}
  {{- end -}}
  {{- $place := dict "x" (mul 12 (mod $i 2)) "y" (mul 8 (div $i 2)) "w" 12 "h" 8 -}}
  {{- $field := dict "defaults" (dict "unit" $panel.unit "min" 0) "overrides" list -}}
  {{- $panels = append $panels (dict "id" (add1 $i) "type" "timeseries" "title" $panel.title "description" ($panel.description | default "") "datasource" $source "gridPos" $place "fieldConfig" $field "targets" $targets) -}}
{{- end -}}
{{- $variables := list (dict "name" "source" "label" "Data source" "type" "datasource" "query" "prometheus") (dict "name" "release" "label" "Release" "type" "query" "datasource" $source "query" "label_values(ray_paceline_requests_total, release)" "refresh" 2 "current" (dict "text" .root.Release.Name "value" .root.Release.Name)) -}}
{{- dict "uid" (printf "paceline-%s" .name) "title" .page.title "tags" (list "paceline") "schemaVersion" 39 "version" 1 "refresh" "30s" "time" (dict "from" "now-1h" "to" "now") "templating" (dict "list" $variables) "panels" $panels | toPrettyJson -}}
{{- end -}}
