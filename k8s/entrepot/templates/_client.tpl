{{/* The pod of a client. Takes (list root client). */}}
{{- define "entrepot.clientPod" -}}
{{- $root := first . -}}
{{- $client := last . -}}
{{- $name := $client.name -}}
{{- $shared := eq $client.medium "file" -}}
metadata:
  labels:
    {{- include "entrepot.selector" (list $root "client" $name) | nindent 4 }}
    entrepot/orders: "yes"
    {{- if eq $client.medium "tcp" }}
    entrepot/slots: "yes"
    {{- end }}
    {{- if $client.suppliers }}
    entrepot/supplies: "yes"
    {{- end }}
    {{- if $client.store }}
    entrepot/stores: "yes"
    {{- end }}
    {{- with $client.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: client
    {{- with $client.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "entrepot.podSpec" $root | nindent 2 }}
  {{- include "entrepot.placement" $client | nindent 2 }}
  {{- include "entrepot.spread" (list $root "client" $name $client) | nindent 2 }}
  {{- if eq $client.kind "Job" }}
  restartPolicy: Never
  {{- end }}
  # SIGTERM hands the trial in hand back, for anybody to take.
  terminationGracePeriodSeconds: {{ int $client.terminationGracePeriodSeconds }}
  {{- if or $client.suppliers (and $client.store $root.Values.store.init.enabled) }}
  initContainers:
    {{- if and $client.store $root.Values.store.init.enabled }}
    {{- include "entrepot.storeInit" $root | nindent 4 }}
    {{- end }}
    {{- range $client.suppliers }}
    {{- $supplier := mergeOverwrite (deepCopy $root.Values.supplierDefaults) . }}
    # Runs beside the client and ends with it.
    - restartPolicy: Always
      {{- include "entrepot.supplierContainer" (list $root $supplier (list $client.medium)) | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: client
      image: {{ include "entrepot.image" (list $root $client.image) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        {{- range $client.command }}
        - {{ . | replace "$(STORE_URL)" (include "entrepot.storeUrl" $root) | quote }}
        {{- end }}
      env:
        - name: ENTREPOT_CLIENT__ENDPOINT
          value: {{ include "entrepot.endpoint" (list $root "frontend") }}
        - name: ENTREPOT_CLIENT__MEDIUM
          value: {{ $client.medium }}
        {{- include "entrepot.mediumEnv" (list $root $client.medium) | nindent 8 }}
        {{- if $client.store }}
        {{- include "entrepot.storeEnv" $root | nindent 8 }}
        {{- end }}
        {{- include "entrepot.settings" (list "CLIENT" $client.settings) | nindent 8 }}
        {{- with $client.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if eq $client.medium "tcp" }}
      ports:
        - name: slots
          containerPort: {{ int $root.Values.slotsPort }}
      {{- end }}
      {{- if $client.probes.enabled }}
      # It orders when it is ready to, which may be late: nothing restarts it for that.
      startupProbe:
        {{- include "entrepot.probe" (list (list "running") 5 12) | nindent 8 }}
      readinessProbe:
        {{- include "entrepot.probe" (list (list "connected" (include "entrepot.endpoint" (list $root "frontend"))) 10 3) | nindent 8 }}
      livenessProbe:
        {{- include "entrepot.probe" (list (list "running") 30 4) | nindent 8 }}
      {{- end }}
      {{- with $client.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "entrepot.containerSecurity" $root | nindent 6 }}
      resources:
        {{- toYaml $client.resources | nindent 8 }}
      volumeMounts:
        {{- include "entrepot.mounts" (list $root $client $client.store $shared) | nindent 8 }}
  {{- $volumes := $client.volumes | default list }}
  {{- range $client.suppliers }}
  {{- $volumes = concat $volumes ((mergeOverwrite (deepCopy $root.Values.supplierDefaults) .).volumes | default list) }}
  {{- end }}
  volumes:
    {{- $every := merge (dict "volumes" (uniq $volumes)) $client }}
    {{- include "entrepot.volumes" (list $root $every $client.store $shared) | nindent 4 }}
{{- end -}}

{{/* Where a client's medium is. Takes (list root medium). */}}
{{- define "entrepot.mediumEnv" -}}
{{- $root := first . -}}
{{- if eq (last .) "tcp" -}}
- name: ENTREPOT_CLIENT__TCP_HOST
  value: "0.0.0.0"
- name: ENTREPOT_CLIENT__TCP_PORT
  value: {{ int $root.Values.slotsPort | quote }}
# Nobody else can resolve a pod's name.
- name: ENTREPOT_CLIENT__TCP_ADVERTISE
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- else if eq (last .) "file" -}}
- name: ENTREPOT_CLIENT__FILE_ROOT
  value: {{ $root.Values.sharedVolume.mountPath }}
- name: ENTREPOT_CLIENT__FILE_NETWORK
  value: {{ $root.Values.sharedVolume.network | quote }}
{{- end -}}
{{- end -}}
