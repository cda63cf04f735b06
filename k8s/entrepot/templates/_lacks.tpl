{{/* Sections and images that templates look into. A null takes the default away; the schema does not see it, as what
is null is gone by then. Takes the root. */}}
{{- define "entrepot.lacks" -}}
{{- $paths := list "broker" "clientDefaults" "clients" "image" "monitoring" "networkPolicy" "security" "serviceAccount" -}}
{{- $paths = concat $paths (list "sharedVolume" "sidecar" "store" "supplierDefaults" "suppliers" "test") -}}
{{- $paths = concat $paths (list "broker.backend" "broker.frontend" "broker.image" "broker.pdb") -}}
{{- $paths = concat $paths (list "broker.probes" "broker.resources") -}}
{{- $paths = concat $paths (list "clientDefaults.image" "clientDefaults.probes" "clientDefaults.resources") -}}
{{- $paths = concat $paths (list "monitoring.dashboards" "monitoring.rules" "monitoring.serviceMonitor") -}}
{{- $paths = concat $paths (list "networkPolicy.dns") -}}
{{- $paths = concat $paths (list "sidecar.image" "sidecar.probes" "sidecar.resources" "sidecar.token") -}}
{{- $paths = concat $paths (list "store.init" "store.init.image" "store.keys" "store.minio" "store.minio.image") -}}
{{- $paths = concat $paths (list "store.minio.persistence" "store.s3" "store.secretKeys") -}}
{{- $paths = concat $paths (list "store.secretKeys.key" "store.secretKeys.secret") -}}
{{- $paths = concat $paths (list "supplierDefaults.autoscaling" "supplierDefaults.image" "supplierDefaults.pdb") -}}
{{- $paths = concat $paths (list "supplierDefaults.probes" "supplierDefaults.resources") -}}
{{- $paths = concat $paths (list "monitoring.serviceMonitor.interval" "monitoring.serviceMonitor.scrapeTimeout") -}}
{{- $paths = concat $paths (list "store.bucket" "test.image" "test.resources") -}}
{{- $gone := list -}}
{{- range $path := $paths }}
{{- $at := $.Values }}
{{- $above := true }}
{{- $keys := splitList "." $path }}
{{- range $depth, $key := $keys }}
{{- if $above }}
{{- if or (not (hasKey $at $key)) (kindIs "invalid" (get $at $key)) }}
{{- $above = false }}
{{- $gone = append $gone (slice $keys 0 (int (add $depth 1)) | join ".") }}
{{- else }}
{{- $at = get $at $key }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range uniq $gone }}
- {{ . }} is null, which takes its default away: leave it out, or say what it is to be
{{- end }}
{{- end -}}
