{{/* What the schema cannot say: values that do not go together, each in a sentence. Takes the root. */}}
{{- define "entrepot.validate" -}}
{{- $said := include "entrepot.lacks" . | trim -}}
{{- if not $said -}}
{{- $said = include "entrepot.faults" . | trim -}}
{{- end -}}
{{- if $said -}}
{{- fail (printf "the values cannot be:\n%s\n" $said) -}}
{{- end -}}
{{- end -}}

{{- define "entrepot.faults" -}}
{{- $ports := list (int .Values.broker.frontend.port) (int .Values.broker.backend.port) (int .Values.sidecar.port) -}}
{{- if ne (len (uniq $ports)) 3 }}
- broker.frontend.port, broker.backend.port and sidecar.port are of one pod: give three that differ
{{- end }}
{{- include "entrepot.storeFaults" . }}
{{- include "entrepot.brokerFaults" . }}
{{- include "entrepot.watchFaults" . }}
{{- if .Values.sharedVolume.enabled }}
{{- include "entrepot.sharedFaults" . }}
{{- end }}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{- include "entrepot.labelFaults" (list "commonLabels" .Values.commonLabels (concat $own (list "app.kubernetes.io/managed-by" "app.kubernetes.io/version" "app.kubernetes.io/part-of" "helm.sh/chart"))) }}
{{- include "entrepot.labelFaults" (list "broker.podLabels" .Values.broker.podLabels $own) }}
{{- include "entrepot.resourceFaults" (list "store.init" .Values.store.init.resources) }}
{{- include "entrepot.resourceFaults" (list "store.minio" .Values.store.minio.resources) }}
{{- include "entrepot.peerFaults" (list "networkPolicy.storePeers" .Values.networkPolicy.storePeers) }}
{{- include "entrepot.peerFaults" (list "networkPolicy.prometheus" .Values.networkPolicy.prometheus) }}
{{- include "entrepot.peerFaults" (list "networkPolicy.dns.peers" .Values.networkPolicy.dns.peers) }}
{{- include "entrepot.room" (list "broker" .Values.broker.shm .Values.broker.resources) }}
{{- if .Values.sidecar.enabled }}
{{- include "entrepot.room" (list "sidecar" .Values.broker.shm .Values.sidecar.resources) }}
{{- else if .Values.monitoring.serviceMonitor.enabled }}
- monitoring.serviceMonitor asks for the metrics of the sidecar: set sidecar.enabled as well
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.monitoring.serviceMonitor.enabled (not .Values.networkPolicy.prometheus) }}
- monitoring.serviceMonitor is on, and networkPolicy.prometheus lets nobody scrape: say there where Prometheus runs
{{- end }}
{{- if and .Values.sidecar.token.value .Values.sidecar.token.existingSecret }}
- sidecar.token has both a value and an existingSecret: give one
{{- end }}
{{- with .Values.sidecar.token.value }}
{{- if lt (len .) 16 }}
- sidecar.token.value has {{ len . }} characters: a token has 16 at least
{{- else if not (regexMatch "^[!-~]+$" .) }}
- sidecar.token.value has a space, a line's end or a letter beyond ASCII: take what `openssl rand -hex 32` makes
{{- end }}
{{- end }}
{{- if .Values.test.enabled }}
{{- if not (or .Values.test.stage .Values.test.product) }}
- test is on and has nothing to order: give test.stage or test.product, or set test.enabled to false
{{- else }}
{{- include "entrepot.testFaults" . }}
{{- end }}
{{- include "entrepot.room" (list "test" .Values.test.shm .Values.test.resources) }}
{{- end }}
{{- $names := list }}
{{- range $at, $given := .Values.suppliers }}
{{- $supplier := mergeOverwrite (deepCopy $.Values.supplierDefaults) $given }}
{{- include "entrepot.supplierFaults" (list $ (printf "suppliers[%d] (%s)" $at $supplier.name) $supplier) }}
{{- if has $supplier.name $names }}
- suppliers[{{ $at }}]: there is a supplier {{ $supplier.name }} already; names are for one each
{{- end }}
{{- $names = append $names $supplier.name }}
{{- end }}
{{- $names = list }}
{{- range $at, $given := .Values.clients }}
{{- $client := mergeOverwrite (deepCopy $.Values.clientDefaults) $given }}
{{- range list "activeDeadlineSeconds" "ttlSecondsAfterFinished" }}
{{- if and (eq $client.kind "Deployment") (hasKey $given .) (or (get $given .) (and (eq . "ttlSecondsAfterFinished") (kindIs "float64" (get $given .)))) }}
- clients[{{ $at }}] ({{ $client.name }}) is a Deployment, which never ends, and {{ . }} is for a Job: leave it out, or set `kind` to Job
{{- end }}
{{- end }}
{{- include "entrepot.clientFaults" (list $ (printf "clients[%d] (%s)" $at $client.name) $client) }}
{{- if has $client.name $names }}
- clients[{{ $at }}]: there is a client {{ $client.name }} already; names are for one each
{{- end }}
{{- $names = append $names $client.name }}
{{- end }}
{{- end -}}

{{- define "entrepot.storeFaults" -}}
{{- $store := .Values.store -}}
{{- if eq $store.kind "minio" }}
{{- if not (include "entrepot.hasKeys" .) }}
- store.kind is minio, and it has no keys: give store.existingSecret, or store.keys for trying out
{{- end }}
{{- if or $store.s3.endpoint $store.s3.region }}
- store.s3 is where a store is that you have: set store.kind to s3 as well
{{- end }}
{{- else if eq $store.kind "s3" }}
{{- if and (not $store.existingSecret) (eq $store.keys.secret "entrepot-demo") }}
- store.kind is s3, and store.keys are those of the demonstration: give store.existingSecret, or set store.keys.key and store.keys.secret to "" where the pods' identity opens the bucket
{{- end }}
{{- end }}
{{- if and (eq $store.kind "minio") (not $store.existingSecret) $store.keys.secret (lt (len $store.keys.secret) 8) }}
- store.keys.secret has {{ len $store.keys.secret }} characters, and MinIO takes no fewer than 8: give a longer one
{{- end }}
{{- if and (eq $store.kind "minio") (not $store.existingSecret) $store.keys.key (lt (len $store.keys.key) 3) }}
- store.keys.key has {{ len $store.keys.key }} characters, and MinIO takes no fewer than 3: give a longer one
{{- end }}
{{- if eq $store.secretKeys.key $store.secretKeys.secret }}
- store.secretKeys are both {{ $store.secretKeys.key }}: say which key of the secret is which
{{- end }}
{{- if or (regexMatch "^[0-9]+(\\.[0-9]+){3}$" $store.bucket) (regexMatch "\\.\\.|\\.-|-\\." $store.bucket) }}
- store.bucket is {{ $store.bucket }}, which S3 takes for none: give one that is no address, and without two of . and - together
{{- end }}
{{- if or (has ".." (splitList "/" ($store.prefix | default ""))) (has "." (splitList "/" ($store.prefix | default ""))) }}
- store.prefix is {{ $store.prefix }}: give one without . and .. between its slashes
{{- end }}
{{- $port := regexFind ":[0-9]+$" ($store.s3.endpoint | default "") | trimPrefix ":" }}
{{- if and $port (or (gt (len $port) 5) (gt (int $port) 65535) (lt (int $port) 1)) }}
- store.s3.endpoint has the port {{ $port }}: ports are from 1 to 65535
{{- end }}
{{- if ne (empty $store.keys.key) (empty $store.keys.secret) }}
- store.keys has one of key and secret: give both, or neither
{{- end }}
{{- end -}}

{{/* Memory that is written to /dev/shm counts as the container's. Takes (list what shm resources). */}}
{{- define "entrepot.room" -}}
{{- include "entrepot.resourceFaults" (list (first .) (last .)) }}
{{- $limit := get (index . 2 | dig "limits" dict) "memory" -}}
{{- if not $limit }}
- {{ first . }}: its /dev/shm of {{ index . 1 }} counts as memory, and resources.limits.memory is not there: give one above it
{{- else if le (include "entrepot.bytes" $limit | int64) (include "entrepot.bytes" (index . 1) | int64) }}
- {{ first . }}: its /dev/shm of {{ index . 1 }} counts as memory, and resources.limits.memory is {{ $limit }}: give more than the one, or less to the other
{{- end }}
{{- end -}}

{{/* Takes (list root what container). */}}
{{- define "entrepot.storeUseFaults" -}}
{{- $root := first . -}}
{{- $what := index . 1 -}}
{{- $work := last . -}}
{{- if and $work.store (eq $root.Values.store.kind "none") }}
- {{ $what }} is to have the store, and store.kind is none: say where it is, or set its `store` to false
{{- end }}
{{- if and (not $work.store) (contains "$(STORE_URL)" (join " " $work.command)) }}
- {{ $what }} is told $(STORE_URL), and has neither keys nor the way to it: set its `store` to true
{{- end }}
{{- end -}}

{{/* What holds for suppliers wherever they run. Takes (list root what supplier). */}}
{{- define "entrepot.servingFaults" -}}
{{- $what := index . 1 -}}
{{- $supplier := last . -}}
{{- if and $supplier.serve $supplier.command }}
- {{ $what }} has both `serve` and `command`: give one
{{- else if not (or $supplier.serve $supplier.command) }}
- {{ $what }} has nothing to run: give `serve` (module:function) and `products`, or a `command`
{{- end }}
{{- if and $supplier.serve (not $supplier.products) }}
- {{ $what }} serves {{ $supplier.serve }}, and no product: give `products`, names or RE2 patterns
{{- end }}
{{- if and $supplier.command $supplier.batch }}
- {{ $what }}: `batch` is for `serve`; a `command` has options of its own
{{- end }}
{{- $credit := get ($supplier.settings | default dict) "credit" }}
{{- if and $credit (gt (int $supplier.batch) (int $credit)) }}
- {{ $what }}: `batch` is {{ int $supplier.batch }}, and settings.credit {{ int $credit }}, so that no batch is ever full: give as much credit at least
{{- end }}
{{- range $supplier.products }}
{{- if not (regexMatch (printf "|%s" .) "") }}
- {{ $what }}: the product {{ . }} is no RE2 pattern: are its brackets closed?
{{- end }}
{{- end }}
{{- $names := list "ENTREPOT_SUPPLIER__ENDPOINT" "ENTREPOT_SUPPLIER__DRAIN_S" "ENTREPOT_SUPPLIER__MEDIUMS" "ENTREPOT_SUPPLIER__FILE_ROOT" }}
{{- if $supplier.store }}
{{- $names = concat $names (include "entrepot.storeNames" (first .) | trim | splitList " ") }}
{{- end }}
{{- include "entrepot.envFaults" (list $what $supplier.env $supplier.settings "SUPPLIER" $names) }}
{{- include "entrepot.storeUseFaults" . }}
{{- end -}}

{{/* Takes (list root what supplier). */}}
{{- define "entrepot.supplierFaults" -}}
{{- $root := first . -}}
{{- $what := index . 1 -}}
{{- $supplier := last . -}}
{{- include "entrepot.servingFaults" . }}
{{- include "entrepot.room" (list $what $supplier.shm $supplier.resources) }}
{{- include "entrepot.podFaults" (list $what $supplier) }}
{{- include "entrepot.volumeFaults" (list $what $supplier.volumes) }}
{{- include "entrepot.mountFaults" (list $root $what $supplier $supplier.volumes $supplier.store (has "file" $supplier.mediums)) }}
{{- if has "shm" $supplier.mediums }}
- {{ $what }}: shared memory reaches no further than a pod. Name it under `suppliers` of a client whose `medium` is shm, or take tcp or file
{{- end }}
{{- if and (has "file" $supplier.mediums) (not $root.Values.sharedVolume.enabled) }}
- {{ $what }} takes the medium file, for which there is no volume: set sharedVolume.enabled
{{- end }}
{{- $scale := $supplier.autoscaling }}
{{- if and $supplier.exclusive (or $scale.enabled (gt (int $supplier.replicas) 1)) }}
- {{ $what }} is exclusive, so that a second would be sent away: give it one replica, and no autoscaling
{{- end }}
{{- if $scale.enabled }}
{{- $class := include "entrepot.supplierClass" $supplier }}
{{- if gt (int $scale.min) (int $scale.max) }}
- {{ $what }}: autoscaling.min is {{ $scale.min }}, and max {{ $scale.max }}: let min be at most max
{{- end }}
{{- if and (eq $scale.kind "hpa") (eq (int $scale.min) 0) }}
- {{ $what }}: autoscaling.min is 0, which no HorizontalPodAutoscaler does: take 1, or keda
{{- end }}
{{- if not $root.Values.sidecar.enabled }}
- {{ $what }} is scaled by what the sidecar tells: set sidecar.enabled
{{- end }}
{{- if not $class }}
- {{ $what }} is scaled, and nothing says by which backlog: give autoscaling.supplierClass, the value of that label at /metrics
{{- else if gt (len $class) 120 }}
- {{ $what }}: its class of suppliers has {{ len $class }} characters, and is cut at 120 in metrics: give autoscaling.supplierClass as it stands at /metrics
{{- end }}
{{- end }}
{{- end -}}

{{/* Takes (list root what client). */}}
{{- define "entrepot.clientFaults" -}}
{{- $root := first . -}}
{{- $what := index . 1 -}}
{{- $client := last . -}}
{{- if not $client.command }}
- {{ $what }} has nothing to run: give a `command`
{{- end }}
{{- include "entrepot.storeUseFaults" . }}
{{- include "entrepot.room" (list $what $client.shm $client.resources) }}
{{- include "entrepot.podFaults" (list $what $client) }}
{{- include "entrepot.clientPodFaults" . }}
{{- if and (eq $client.medium "file") (not $root.Values.sharedVolume.enabled) }}
- {{ $what }} has the medium file, for which there is no volume: set sharedVolume.enabled
{{- end }}
{{- if eq $client.medium "shm" }}
{{- include "entrepot.shmFaults" . }}
{{- else if $client.suppliers }}
- {{ $what }} has `suppliers` in its pod, which is for the medium shm: set `medium` to shm, or name them under the root's suppliers
{{- end }}
{{- end -}}

{{/* Takes (list root what client). */}}
{{- define "entrepot.shmFaults" -}}
{{- $root := first . -}}
{{- $what := index . 1 -}}
{{- $client := last . -}}
{{- if not $client.suppliers }}
- {{ $what }} has the medium shm, which reaches no further than its pod: name its suppliers under `suppliers` there, or take tcp or file
{{- end }}
{{- if gt (int $client.pods) 1 }}
- {{ $what }} has the medium shm and {{ $client.pods }} pods, whose suppliers would be given each other's orders: set `pods` to 1, or take tcp or file
{{- end }}
{{- $slots := $client.settings.slots | default 64 | int64 }}
{{- $size := $client.settings.slot_nbytes | default "1MiB" | toString | trimSuffix "B" }}
{{- if le (include "entrepot.bytes" $client.shm | int64) (mul $slots (include "entrepot.bytes" $size | int64)) }}
- {{ $what }}: {{ $slots }} slots of {{ $size }}{{ if regexMatch "[a-zA-Z]$" $size }}B{{ end }} do not fit into its /dev/shm of {{ $client.shm }}: give it more than their sum
{{- end }}
{{- $names := list "client" "store-init" }}
{{- range $at, $given := $client.suppliers }}
{{- $supplier := mergeOverwrite (deepCopy $root.Values.supplierDefaults) $given }}
{{- $which := printf "%s, suppliers[%d] (%s)" $what $at $supplier.name }}
{{- include "entrepot.servingFaults" (list $root $which $supplier) }}
{{- include "entrepot.room" (list $which $client.shm $supplier.resources) }}
{{- if and $supplier.store (not $client.store) }}
- {{ $which }} is to have the store: set `store` of its client as well
{{- end }}
{{- if has $supplier.name $names }}
- {{ $which }}: a container of that pod is called so already
{{- end }}
{{- $names = append $names $supplier.name }}
{{- range $root.Values.suppliers }}
{{- range .products }}
{{- if has . $supplier.products }}
- {{ $which }} serves {{ . }}, and so does one outside of its pod, which cannot reach shared memory: give the product another name here
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
