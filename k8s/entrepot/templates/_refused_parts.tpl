{{/* Takes the root. */}}
{{- define "entrepot.brokerFaults" -}}
{{- $settings := .Values.broker.settings | default dict -}}
{{- $suspect := get $settings "suspect_s" | default 5 | float64 }}
{{- $dead := get $settings "dead_s" | default 30 | float64 }}
{{- if lt $dead $suspect }}
- broker.settings: dead_s is {{ $dead }}, and suspect_s {{ $suspect }}, so that suppliers are lost before they are suspected: let dead_s be the greater
{{- end }}
{{- $names := list "ENTREPOT_BROKER__FRONTEND" "ENTREPOT_BROKER__BACKEND" "ENTREPOT_CLIENT__ENDPOINT" }}
{{- include "entrepot.envFaults" (list "broker" .Values.broker.env $settings "BROKER" $names) }}
{{- $names = list "ENTREPOT_SIDECAR__HOST" "ENTREPOT_SIDECAR__PORT" "ENTREPOT_CLIENT__ENDPOINT" }}
{{- if include "entrepot.hasToken" . }}
{{- $names = append $names "ENTREPOT_SIDECAR__TOKEN_FILE" }}
{{- end }}
{{- if ne .Values.store.kind "none" }}
{{- $names = append $names "ENTREPOT_SIDECAR__STORE" }}
{{- $names = concat $names (include "entrepot.storeNames" . | trim | splitList " ") }}
{{- end }}
{{- include "entrepot.envFaults" (list "sidecar" .Values.sidecar.env .Values.sidecar.settings "SIDECAR" $names) }}
{{- end -}}

{{/* Takes the root. */}}
{{- define "entrepot.watchFaults" -}}
{{- with .Values.monitoring.serviceMonitor }}
{{- if gt (include "entrepot.millis" .scrapeTimeout | int64) (include "entrepot.millis" .interval | int64) }}
- monitoring.serviceMonitor.scrapeTimeout is {{ .scrapeTimeout }}, and interval {{ .interval }}: let a scrape take at most the interval
{{- end }}
{{- end }}
{{- if and .Values.monitoring.rules.enabled (not .Values.sidecar.enabled) }}
- monitoring.rules look at the metrics of the sidecar: set sidecar.enabled as well
{{- end }}
{{- end -}}

{{/* Of a pod, wherever it runs. Takes (list what work). */}}
{{- define "entrepot.podFaults" -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{- include "entrepot.labelFaults" (list (printf "%s, podLabels" (first .)) (last .).podLabels $own) }}
{{- include "entrepot.egressFaults" (list (first .) (last .).egress) }}
{{- end -}}

{{/* Takes (list what rules). */}}
{{- define "entrepot.egressFaults" -}}
{{- range $at, $rule := last . }}
{{- include "entrepot.peerFaults" (list (printf "%s, egress[%d].to" (first $) $at) (get $rule "to" | default list)) }}
{{- end }}
{{- end -}}

{{/* A client's variables, and the volumes of its pod, which its suppliers share. Takes (list root what client). */}}
{{- define "entrepot.clientPodFaults" -}}
{{- $root := first . -}}
{{- $what := index . 1 -}}
{{- $client := last . -}}
{{- $names := list "ENTREPOT_CLIENT__ENDPOINT" "ENTREPOT_CLIENT__MEDIUM" }}
{{- if eq $client.medium "tcp" }}
{{- $names = concat $names (list "ENTREPOT_CLIENT__TCP_HOST" "ENTREPOT_CLIENT__TCP_PORT" "ENTREPOT_CLIENT__TCP_ADVERTISE") }}
{{- else if eq $client.medium "file" }}
{{- $names = concat $names (list "ENTREPOT_CLIENT__FILE_ROOT" "ENTREPOT_CLIENT__FILE_NETWORK") }}
{{- end }}
{{- if $client.store }}
{{- $names = concat $names (include "entrepot.storeNames" $root | trim | splitList " ") }}
{{- end }}
{{- include "entrepot.envFaults" (list $what $client.env $client.settings "CLIENT" $names) }}
{{- $volumes := $client.volumes | default list }}
{{- $beside := list }}
{{- range $client.suppliers }}
{{- $supplier := mergeOverwrite (deepCopy $root.Values.supplierDefaults) . }}
{{- $beside = append $beside $supplier }}
{{- $volumes = concat $volumes ($supplier.volumes | default list) }}
{{- end }}
{{- $volumes = uniq $volumes }}
{{- include "entrepot.volumeFaults" (list $what $volumes) }}
{{- include "entrepot.mountFaults" (list $root $what $client $volumes $client.store (eq $client.medium "file")) }}
{{- range $beside }}
{{- include "entrepot.mountFaults" (list $root (printf "%s, supplier %s" $what .name) . $volumes .store false) }}
{{- end }}
{{- if and (eq $client.medium "file") $root.Values.suppliers }}
{{- $taken := false }}
{{- range $root.Values.suppliers }}
{{- if has "file" (mergeOverwrite (deepCopy $root.Values.supplierDefaults) .).mediums }}
{{- $taken = true }}
{{- end }}
{{- end }}
{{- if not $taken }}
- {{ $what }} has the medium file, and no supplier takes it: add file to the `mediums` of one
{{- end }}
{{- end }}
{{- end -}}

{{/* Whether anybody serves what `helm test` orders: "yes", "no", or "perhaps" where commands do not tell. A stage of
the default's name is one of ours only where a supplier is called so or runs so. Takes the root. */}}
{{- define "entrepot.testServed" -}}
{{- $stage := .Values.test.stage -}}
{{- $product := empty $stage | ternary .Values.test.product (printf "stage/%s/describe" $stage) -}}
{{- $said := "no" -}}
{{- range .Values.suppliers }}
{{- $supplier := mergeOverwrite (deepCopy $.Values.supplierDefaults) . }}
{{- if $supplier.serve }}
{{- range $supplier.products }}
{{- if or (eq . $product) (regexMatch (printf "^(?:%s)$" .) $product) }}
{{- $said = "yes" }}
{{- end }}
{{- end }}
{{- else if and (eq $said "no") (or (ne $stage "clean") (contains "clean" (printf "%s %s" $supplier.name (join " " $supplier.command)))) }}
{{- $said = "perhaps" }}
{{- end }}
{{- end }}
{{- $said -}}
{{- end -}}

{{/* Whether there is a test. The default's stage is nobody's where all suppliers are your own: then there is none. */}}
{{- define "entrepot.tested" -}}
{{- if and .Values.test.enabled (not (and (eq .Values.test.stage "clean") (eq (include "entrepot.testServed" .) "no"))) }}yes{{ end -}}
{{- end -}}

{{/* Takes the root. */}}
{{- define "entrepot.testFaults" -}}
{{- $test := .Values.test -}}
{{- if and $test.stage $test.product }}
- test has both a stage and a product: give one, and set test.stage to "" for the product
{{- else if and (eq (include "entrepot.testServed" .) "no") (ne $test.stage "clean") .Values.suppliers }}
- test orders {{ empty $test.stage | ternary $test.product (printf "of the stage %s" ($test.stage | default "")) }}, which no supplier serves: name what one does, or set test.enabled to false
{{- end }}
{{- end -}}
