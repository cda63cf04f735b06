{{/* What holds for every pod. Takes the root. */}}
{{- define "entrepot.podSpec" -}}
serviceAccountName: {{ include "entrepot.serviceAccount" . }}
automountServiceAccountToken: false
# A variable ENTREPOT_..._PORT for each service nearby is of no use to anybody here.
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- if .Values.security.setIds }}
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "entrepot.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Where a pod may run. Takes a workload's values. */}}
{{- define "entrepot.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Pods of one kind are spread over what topologySpread names. Takes (list root component name workload). */}}
{{- define "entrepot.spread" -}}
{{- $kind := list (first .) (index . 1) (index . 2) -}}
{{- with (last .).topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: {{ int .maxSkew }}
    topologyKey: {{ .topologyKey }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "entrepot.selector" $kind | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Variables of the settings of a section, such as SUPPLIER. Takes (list section settings). */}}
{{- define "entrepot.settings" -}}
{{- $section := first . -}}
{{- range $name, $value := last . }}
- name: ENTREPOT_{{ $section }}__{{ upper $name }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end -}}

{{/* Keys are files, which start.py reads: they stand in no environment of the pod's description. */}}
{{- define "entrepot.storeEnv" -}}
- name: STORE_URL
  value: {{ include "entrepot.storeUrl" . | quote }}
{{- if include "entrepot.hasKeys" . }}
- name: AWS_ACCESS_KEY_ID_FILE
  value: /run/secrets/store/key
- name: AWS_SECRET_ACCESS_KEY_FILE
  value: /run/secrets/store/secret
{{- end }}
{{- include "entrepot.settings" (list "STORE" .Values.store.settings) }}
{{- end -}}

{{/* Without keys the store's are of the pod's identity, such as a role of its service account. */}}
{{- define "entrepot.hasKeys" -}}
{{- if or .Values.store.existingSecret .Values.store.keys.key }}yes{{ end -}}
{{- end -}}

{{/* Takes (list root workload usesStore usesShared). */}}
{{- define "entrepot.volumes" -}}
{{- $root := first . -}}
{{- $work := index . 1 -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ $work.tmp }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ $work.shm }}
{{- if and (index . 2) (include "entrepot.hasKeys" $root) }}
{{ include "entrepot.keysVolume" $root }}
{{- end }}
{{- if index . 3 }}
- name: shared
  persistentVolumeClaim:
    claimName: {{ include "entrepot.sharedClaim" $root }}
{{- end }}
{{- with $work.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "entrepot.keysVolume" -}}
- name: store-keys
  secret:
    secretName: {{ include "entrepot.storeSecret" . }}
    # Every process of the pod is of one user, which is to read them.
    defaultMode: 292 # 0444
    items:
      - key: {{ .Values.store.secretKeys.key }}
        path: key
      - key: {{ .Values.store.secretKeys.secret }}
        path: secret
{{- end -}}

{{/* Takes (list root workload usesStore usesShared). */}}
{{- define "entrepot.mounts" -}}
{{- $root := first . -}}
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
{{- if and (index . 2) (include "entrepot.hasKeys" $root) }}
- name: store-keys
  mountPath: /run/secrets/store
  readOnly: true
{{- end }}
{{- if index . 3 }}
- name: shared
  mountPath: {{ $root.Values.sharedVolume.mountPath }}
{{- end }}
{{- with (index . 1).volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Makes the bucket before what needs it; any number may do so at once. Takes the root. */}}
{{- define "entrepot.storeInit" -}}
{{- $root := . -}}
{{- $init := $root.Values.store.init -}}
- name: store-init
  image: {{ include "entrepot.image" (list $root $init.image) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args: [entrepot, store, init, {{ include "entrepot.storeUrl" $root | quote }}, --wait, {{ int $init.waitSeconds | quote }}]
  env:
    {{- include "entrepot.storeEnv" $root | nindent 4 }}
  {{- include "entrepot.containerSecurity" $root | nindent 2 }}
  resources:
    {{- toYaml $init.resources | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- if include "entrepot.hasKeys" $root }}
    - name: store-keys
      mountPath: /run/secrets/store
      readOnly: true
    {{- end }}
{{- end -}}

{{/* A probe by healthy.py, which needs no shell and crosses no network policy. Takes (list words period failures). */}}
{{- define "entrepot.probe" -}}
exec:
  command: {{ concat (list "python" "/opt/entrepot/services/healthy.py") (first .) | toJson }}
periodSeconds: {{ index . 1 }}
failureThreshold: {{ index . 2 }}
timeoutSeconds: 8
{{- end -}}
