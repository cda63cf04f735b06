{{/* The container of a supplier. Takes (list root supplier mediums). */}}
{{- define "entrepot.supplierContainer" -}}
{{- $root := first . -}}
{{- $supplier := index . 1 -}}
{{- $mediums := last . -}}
name: {{ $supplier.name }}
image: {{ include "entrepot.image" (list $root $supplier.image) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
args:
  {{- if $supplier.serve }}
  - entrepot
  - supplier
  - --serve
  - {{ $supplier.serve | quote }}
  {{- range $supplier.products }}
  - --product
  - {{ . | quote }}
  {{- end }}
  {{- with $supplier.batch }}
  - --batch
  - {{ int . | quote }}
  {{- end }}
  {{- if $supplier.exclusive }}
  - --exclusive
  {{- end }}
  {{- else }}
  {{- range $supplier.command }}
  - {{ . | replace "$(STORE_URL)" (include "entrepot.storeUrl" $root) | quote }}
  {{- end }}
  {{- end }}
env:
  - name: ENTREPOT_SUPPLIER__ENDPOINT
    value: {{ include "entrepot.endpoint" (list $root "backend") }}
  - name: ENTREPOT_SUPPLIER__DRAIN_S
    value: {{ int $supplier.drainSeconds | quote }}
  - name: ENTREPOT_SUPPLIER__MEDIUMS
    value: {{ join "," $mediums | quote }}
  {{- if has "file" $mediums }}
  - name: ENTREPOT_SUPPLIER__FILE_ROOT
    value: {{ $root.Values.sharedVolume.mountPath }}
  {{- end }}
  {{- if $supplier.store }}
  {{- include "entrepot.storeEnv" $root | nindent 2 }}
  {{- end }}
  {{- include "entrepot.settings" (list "SUPPLIER" $supplier.settings) | nindent 2 }}
  {{- with $supplier.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if $supplier.probes.enabled }}
{{- $backend := include "entrepot.endpoint" (list $root "backend") }}
startupProbe:
  {{- include "entrepot.probe" (list (list "started" $backend) 5 (divf $supplier.probes.startupSeconds 5 | ceil | int)) | nindent 2 }}
readinessProbe:
  {{- include "entrepot.probe" (list (list "connected" $backend) 10 3) | nindent 2 }}
# Of itself alone: a broker that is gone is no reason to restart those who wait for it.
livenessProbe:
  {{- include "entrepot.probe" (list (list "running") 30 4) | nindent 2 }}
{{- end }}
{{- with $supplier.lifecycle }}
lifecycle:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{ include "entrepot.containerSecurity" $root }}
resources:
  {{- toYaml $supplier.resources | nindent 2 }}
volumeMounts:
  {{- include "entrepot.mounts" (list $root $supplier $supplier.store (has "file" $mediums)) | nindent 2 }}
{{- end -}}
