{{/* What the API server or a container would refuse of what is given as Kubernetes has it: each in a sentence. */}}

{{/* Labels that select pods are the chart's. Takes (list what labels names). */}}
{{- define "entrepot.labelFaults" -}}
{{- range $key, $_ := index . 1 }}
{{- if or (has $key (last $)) (hasPrefix "entrepot/" $key) }}
- {{ first $ }}: the label {{ $key }} is the chart's own, which selects by it: take another
{{- end }}
{{- end }}
{{- end -}}

{{/* Takes (list what resources). */}}
{{- define "entrepot.resourceFaults" -}}
{{- $limits := get (last .) "limits" | default dict }}
{{- range $name, $asked := get (last .) "requests" | default dict }}
{{- $most := get $limits $name }}
{{- if and (not (kindIs "invalid" $asked)) (hasKey $limits $name) (not (kindIs "invalid" $most)) }}
{{- if gt (include "entrepot.amount" $asked | float64) (include "entrepot.amount" $most | float64) }}
- {{ first $ }}: resources.requests.{{ $name }} is {{ $asked }}, and its limit {{ $most }}: let the request be at most the limit
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Takes (list what env settings section names): names are those that the chart sets. */}}
{{- define "entrepot.envFaults" -}}
{{- $what := first . -}}
{{- $names := last . -}}
{{- range $name, $_ := index . 2 }}
{{- $names = append $names (printf "ENTREPOT_%s__%s" (index $ 3) (upper $name)) }}
{{- end }}
{{- $seen := list }}
{{- range $at, $each := index . 1 }}
{{- $name := get $each "name" }}
{{- if not (and (kindIs "string" $name) (regexMatch "^[A-Za-z_.-][A-Za-z0-9_.-]*$" (toString $name))) }}
- {{ $what }}: env[{{ $at }}] has no name that a variable may have: give `name`
{{- else if has $name $names }}
- {{ $what }}: env[{{ $at }}] is {{ $name }}, which the chart sets: leave it out, or change the value that it is made of
{{- else if has $name $seen }}
- {{ $what }}: env has {{ $name }} twice: give it once
{{- end }}
{{- $seen = append $seen $name }}
{{- $value := get $each "value" }}
{{- if not (or (kindIs "string" $value) (kindIs "invalid" $value)) }}
- {{ $what }}: env[{{ $at }}] ({{ $name }}) has the value {{ toJson $value }}, which is no text: put it between quotes
{{- end }}
{{- end }}
{{- end -}}

{{/* Variables of the store. */}}
{{- define "entrepot.storeNames" -}}
STORE_URL{{ if include "entrepot.hasKeys" . }} AWS_ACCESS_KEY_ID_FILE AWS_SECRET_ACCESS_KEY_FILE{{ end }}{{ range $name, $_ := .Values.store.settings }} ENTREPOT_STORE__{{ upper $name }}{{ end }}
{{- end -}}

{{/* Volumes of a pod. Takes (list what volumes). */}}
{{- define "entrepot.volumeFaults" -}}
{{- $what := first . -}}
{{- $seen := list }}
{{- range $at, $each := last . }}
{{- $name := get $each "name" }}
{{- if not (and (kindIs "string" $name) (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" (toString $name))) }}
- {{ $what }}: volumes[{{ $at }}] has no name that a volume may have: give `name`, of small letters, digits and -
{{- else if has $name (list "tmp" "shm" "shared" "store-keys") }}
- {{ $what }}: volumes[{{ $at }}] is called {{ $name }}, as one that the chart makes: take another name
{{- else if has $name $seen }}
- {{ $what }}: there is a volume {{ $name }} twice: give it once
{{- end }}
{{- $seen = append $seen $name }}
{{- end }}
{{- end -}}

{{/* Mounts of a container. Takes (list root what work volumes store shared). */}}
{{- define "entrepot.mountFaults" -}}
{{- $root := first . -}}
{{- $what := index . 1 -}}
{{- $names := list "tmp" "shm" -}}
{{- $paths := list "/" "/tmp" "/dev" "/dev/shm" "/proc" "/sys" "/opt/entrepot" -}}
{{- if and (index . 4) (include "entrepot.hasKeys" $root) }}
{{- $names = append $names "store-keys" }}
{{- $paths = append $paths "/run/secrets/store" }}
{{- end }}
{{- if last . }}
{{- $names = append $names "shared" }}
{{- $paths = append $paths (clean $root.Values.sharedVolume.mountPath) }}
{{- end }}
{{- range index . 3 }}
{{- $names = append $names (get . "name") }}
{{- end }}
{{- $seen := list }}
{{- range $at, $each := (index . 2).volumeMounts }}
{{- $which := printf "%s: volumeMounts[%d]" $what $at }}
{{- $name := get $each "name" }}
{{- $path := get $each "mountPath" | default "" | toString }}
{{- if not (has $name $names) }}
- {{ $which }} is of {{ $name | default "no volume" }}, and there is no such volume: name one under `volumes`
{{- end }}
{{- if or (not (hasPrefix "/" $path)) (contains ":" $path) (has ".." (splitList "/" $path)) }}
- {{ $which }} has the mountPath {{ quote $path }}: give one that begins with /, without : and ..
{{- else if has (clean $path) $paths }}
- {{ $which }} has the mountPath {{ $path }}, where something is that the container needs: take another
{{- else if has (clean $path) $seen }}
- {{ $which }} has the mountPath {{ $path }}, and so has one before it: give each its own
{{- end }}
{{- $seen = append $seen (clean $path) }}
{{- end }}
{{- end -}}

{{/* Takes the root. */}}
{{- define "entrepot.sharedFaults" -}}
{{- $path := .Values.sharedVolume.mountPath -}}
{{- $taken := list "/" "/tmp" "/dev" "/dev/shm" "/proc" "/sys" "/etc" "/usr" "/run" "/run/secrets/store" "/opt" "/opt/entrepot" -}}
{{- if or (has ".." (splitList "/" $path)) (has (clean $path) $taken) }}
- sharedVolume.mountPath is {{ $path }}, where the pod has something of its own, or which has ..: take a folder of its own, such as /shared
{{- end }}
{{- end -}}

{{/* Peers of policies. Takes (list what peers). */}}
{{- define "entrepot.peerFaults" -}}
{{- range $at, $each := last . }}
{{- with get $each "ipBlock" }}
{{- if not (kindIs "map" .) }}
- {{ first $ }}[{{ $at }}].ipBlock is {{ toJson . }}: write it as {cidr: 203.0.113.0/28}
{{- else }}
{{- range concat (list (get . "cidr")) (get . "except" | default list) }}
{{- $four := "^([0-9]{1,2}|1[0-9]{2}|2[0-4][0-9]|25[0-5])(\\.([0-9]{1,2}|1[0-9]{2}|2[0-4][0-9]|25[0-5])){3}/([0-9]|[12][0-9]|3[0-2])$" }}
{{- $six := "^[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$" }}
{{- if not (or (regexMatch $four (toString .)) (regexMatch $six (toString .))) }}
- {{ first $ }}[{{ $at }}] has the block {{ toJson . }}, which is none of addresses: give one such as 203.0.113.0/28
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A duration such as 500ms, in milliseconds. */}}
{{- define "entrepot.millis" -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- mul (trimSuffix $unit . | int64) (get (dict "ms" 1 "s" 1000 "m" 60000) $unit) -}}
{{- end -}}
