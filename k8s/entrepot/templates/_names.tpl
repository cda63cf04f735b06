{{/* The release and the chart; of a release that is called as the chart, once. Not the usual rule, which
leaves the chart out wherever the release contains its name: then "a" and "a-entrepot" would collide. */}}
{{- define "entrepot.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if eq .Release.Name .Chart.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/* A name of at most 52 characters, which leaves room for what controllers add. One that is too long is cut,
with a hash of all of it behind, so that two that differ stay two. Takes (list root suffix). */}}
{{- define "entrepot.named" -}}
{{- $full := printf "%s-%s" (include "entrepot.fullname" (first .)) (last .) -}}
{{- if le (len $full) 52 -}}
{{- $full -}}
{{- else -}}
{{- printf "%s-%s" (trunc 43 $full | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/* What selects pods: never changes while a release lives. Takes (list root component name). */}}
{{- define "entrepot.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with index . 2 }}
entrepot/{{ index $ 1 }}: {{ . }}
{{- end }}
{{- end -}}

{{/* Takes (list root component name). */}}
{{- define "entrepot.labels" -}}
{{- $root := first . -}}
{{ include "entrepot.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: entrepot
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image with its registry and its tag. Takes (list root image). */}}
{{- define "entrepot.image" -}}
{{- $root := first . -}}
{{- $image := last . -}}
{{- if not (or (contains "@" $image) (regexMatch ":[^/]+$" $image)) -}}
{{- $image = printf "%s:%s" $image ($root.Values.image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- if hasSuffix ":latest" $image -}}
{{- fail (printf "image %s: nobody can say later what `latest` was; give a version" $image) -}}
{{- end -}}
{{- with $root.Values.image.registry -}}{{ trimSuffix "/" . }}/{{- end -}}
{{- $image -}}
{{- end -}}

{{/* The service of a port of the broker, as a ZeroMQ endpoint. Takes (list root "frontend"). */}}
{{- define "entrepot.endpoint" -}}
{{- $port := get (get (first .).Values.broker (last .)) "port" -}}
tcp://{{ include "entrepot.named" (list (first .) (printf "broker-%s" (last .))) }}:{{ int $port }}
{{- end -}}

{{- define "entrepot.storeUrl" -}}
{{- with .Values.store -}}
{{- $endpoint := .s3.endpoint -}}
{{- if eq .kind "minio" -}}
{{- $endpoint = printf "http://%s:9000" (include "entrepot.named" (list $ "store")) -}}
{{- end -}}
{{- $query := list -}}
{{- with $endpoint }}{{ $query = append $query (printf "endpoint=%s" .) }}{{ end -}}
{{- if and (eq .kind "s3") .s3.region }}{{ $query = append $query (printf "region=%s" .s3.region) }}{{ end -}}
s3://{{ .bucket }}{{ with .prefix }}/{{ . }}{{ end }}{{ if $query }}?{{ join "&" $query }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "entrepot.storeSecret" -}}
{{- .Values.store.existingSecret | default (include "entrepot.named" (list . "store-keys")) -}}
{{- end -}}

{{- define "entrepot.tokenSecret" -}}
{{- .Values.sidecar.token.existingSecret | default (include "entrepot.named" (list . "sidecar-token")) -}}
{{- end -}}

{{- define "entrepot.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "entrepot.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "entrepot.sharedClaim" -}}
{{- .Values.sharedVolume.existingClaim | default (include "entrepot.named" (list . "shared")) -}}
{{- end -}}

{{/* A quantity such as 512Mi, in bytes. */}}
{{- define "entrepot.bytes" -}}
{{- include "entrepot.amount" . | float64 | int64 -}}
{{- end -}}

{{/* A quantity of any unit, as a number. */}}
{{- define "entrepot.amount" -}}
{{- $units := dict "m" 1e-3 "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $units = merge $units (dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624) -}}
{{- $units = merge $units (dict "Ei" 1152921504606846976) -}}
{{- $said := toString . -}}
{{- $number := regexFind "^[0-9.]+([eE][+-]?[0-9]+)?" $said -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number $said)) -}}
{{- end -}}
