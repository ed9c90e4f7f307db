{{/* Prints the namespace of the keys, as the program derives it. */}}
{{- define "edgesync.keys" -}}{{ .Release.Namespace }}-ca{{- end }}

{{/* Prints the image with its tag or digest. */}}
{{- define "edgesync.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}{{ $image.repository }}@{{ $image.digest }}{{- else -}}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{- end -}}
{{- end }}

{{/* Refuses values that the schema cannot refuse, or not with a hint. */}}
{{- define "edgesync.check" -}}
{{- $name := .Release.Namespace -}}
{{- if or (eq $name "default") (hasPrefix "kube-" $name) -}}
{{- fail (printf "namespace '%s': edgesync needs a dedicated one, because write access to its Secrets decides who belongs to the fleet; hint: --namespace edgesync --create-namespace" $name) -}}
{{- end -}}
{{- $keys := include "edgesync.keys" . -}}
{{- if gt (len $keys) 63 -}}
{{- fail (printf "namespace '%s': that of the keys, '%s', is longer than 63 characters; hint: --namespace with at most %d" $name $keys (sub 63 (sub (len $keys) (len $name)))) -}}
{{- end -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty: no public registry has the image; hint: pack it with packaging/image, then --set image.repository=registry.example.com/edgesync-cloud" -}}
{{- end -}}
{{- if not .Values.enrollment.names -}}
{{- fail "enrollment.names is empty: a device refuses a replica without the name that it uses; hint: --set 'enrollment.names={edge.example.com}'" -}}
{{- end -}}
{{- $external := eq .Values.broker.mode "external" -}}
{{- if and $external (not .Values.broker.url) -}}
{{- fail "broker.url is empty, and broker.mode is external; hint: --set broker.url=mqtts://broker.example.com:8883" -}}
{{- end -}}
{{- if and .Values.broker.url (not $external) -}}
{{- fail "broker.url is set, and broker.mode is embedded; hint: --set broker.mode=external" -}}
{{- end -}}
{{- if and .Values.broker.secret (not $external) -}}
{{- fail "broker.secret is set, and broker.mode is embedded; hint: --set broker.mode=external" -}}
{{- end -}}
{{- if and $external .Values.signer.enabled -}}
{{- fail "signer.enabled with an external broker: each replica signs a certificate for that broker; hint: --set signer.enabled=false" -}}
{{- end -}}
{{- with .Values.service.sharedPort -}}
{{- if $.Values.signer.enabled -}}
{{- fail "service.sharedPort with signer.enabled: TLS of devices that join ends at the signer, so they need the port 10002; hint: --set service.sharedPort=0" -}}
{{- end -}}
{{- if has (int .) (list 8883 10002) -}}
{{- fail (printf "service.sharedPort: %d is the port of one service already; hint: --set service.sharedPort=443" (int .)) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := dict "store.type" "" "kubernetes.namespace" "" "enrollment.names" "enrollment.names" "enrollment.signer" "signer.enabled" "enrollment.listen" "" "api.health" "" "broker.listen" "" "broker.mode" "broker.mode" "link.broker" "broker.url" "listen.address" "service.sharedPort" -}}
{{- $path := splitList "." $key -}}
{{- if hasKey (get $.Values.config (first $path) | default dict) (last $path) -}}
{{- fail (printf "config.%s: the chart sets this key; hint: %s" $key (empty $value | ternary "remove it" (printf "set the value %s" $value))) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.place.rules "configmaps" -}}
{{- fail "place.rules.configmaps: edgesync-place-configmaps is a role of the chart, and has the right already; hint: choose another name" -}}
{{- end -}}
{{- range $name, $rules := .Values.place.rules -}}
{{- range $rules -}}
{{- $core := or (has "" .apiGroups) (has "*" .apiGroups) -}}
{{- if and $core (or (has "secrets" .resources) (has "*" .resources)) -}}
{{- fail (printf "place.rules.%s: a right to the Secrets of all namespaces includes the keys of edgesync; hint: --set 'place.secrets={NAMESPACE}'" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.place.secrets -}}
{{- if has . (list $name $keys) -}}
{{- fail (printf "place.secrets: namespace '%s' belongs to edgesync itself, and its Secrets are never placed; hint: remove it" .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Prints a value as TOML. A string in JSON is a basic string of TOML. */}}
{{- define "edgesync.toml" -}}
{{- if kindIs "map" . -}}
{ {{- range $at, $key := keys . | sortAlpha }}{{ if $at }},{{ end }} {{ toJson $key }} = {{ include "edgesync.toml" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $at, $item := . }}{{ if $at }}, {{ end }}{{ include "edgesync.toml" $item }}{{ end }}]
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{/* Prints the configuration: that of the manifests, overridden by the keys of config, then by other values. */}}
{{- define "edgesync.configuration" -}}
{{- $external := eq .Values.broker.mode "external" -}}
{{- $file := printf "manifests/%s/edgesync-cloud.toml" (ternary "external-broker" "base" $external) -}}
{{- $config := mergeOverwrite (.Files.Get $file | fromToml) (deepCopy .Values.config) -}}
{{- $_ := set $config.kubernetes "namespace" .Release.Namespace -}}
{{- $_ := set $config.enrollment "names" .Values.enrollment.names -}}
{{- if $external -}}{{- $_ := set $config.link "broker" .Values.broker.url -}}{{- end -}}
{{- with .Values.service.sharedPort -}}
{{- $services := ternary (list "join") (list "join" "mqtt") $external -}}
{{- $_ := set $config "listen" (merge (dict "address" "0.0.0.0:10443") ($config.listen | default dict) (dict "services" $services)) -}}
{{- /* The port of the Service differs from that of the program. */ -}}
{{- if not (or $external (hasKey $config.enrollment "broker_url") (hasKey $config.enrollment "broker_urls")) -}}
{{- $_ := set $config.enrollment "broker_urls" (list "mqtts://:8883" (printf "mqtts://:%d" (int .)) (printf "wss://:%d/mqtt" (int .))) -}}
{{- end -}}
{{- end -}}
# From the values of the chart. config/edgesync-cloud.toml of the sources has all keys.
{{- range $key := keys $config | sortAlpha -}}
{{- if not (kindIs "map" (get $config $key)) }}
{{ $key }} = {{ include "edgesync.toml" (get $config $key) }}
{{- end -}}
{{- end -}}
{{- range $section := keys $config | sortAlpha -}}
{{- $keys := get $config $section -}}
{{- if kindIs "map" $keys }}

[{{ $section }}]
{{- range $key := keys $keys | sortAlpha }}
{{ $key }} = {{ include "edgesync.toml" (get $keys $key) }}
{{- end -}}
{{- end -}}
{{- end }}
{{ end }}

{{/* Moves an object into the namespaces of the release. The manifests have edgesync and edgesync-ca. */}}
{{- define "edgesync.move" -}}
{{- $names := dict "edgesync" .root.Release.Namespace "edgesync-ca" (include "edgesync.keys" .root) -}}
{{- $object := .object -}}
{{- with $object.metadata.namespace -}}
{{- $_ := set $object.metadata "namespace" (get $names . | default .) -}}
{{- end -}}
{{- if eq $object.kind "Namespace" -}}
{{- $_ := set $object.metadata "name" (get $names $object.metadata.name) -}}
{{- end -}}
{{- range $object.subjects -}}
{{- $_ := set . "namespace" (get $names .namespace | default .namespace) -}}
{{- end -}}
{{- end }}

{{/* Sets the values of all Pods in a Deployment. */}}
{{- define "edgesync.pods" -}}
{{- $values := .root.Values -}}
{{- $spec := .object.spec.template.spec -}}
{{- $container := first $spec.containers -}}
{{- $_ := set $container "image" (include "edgesync.image" .root) -}}
{{- with $values.image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
{{- with $values.image.pullSecrets -}}{{- $_ := set $spec "imagePullSecrets" . -}}{{- end -}}
{{- range list "nodeSelector" "tolerations" "affinity" "priorityClassName" -}}
{{- $key := . -}}
{{- with get $values $key -}}{{- $_ := set $spec $key . -}}{{- end -}}
{{- end -}}
{{- /* A change of the configuration starts a rolling update. */ -}}
{{- $checksum := dict "checksum/config" (include "edgesync.configuration" .root | sha256sum) -}}
{{- $_ := set .object.spec.template.metadata "annotations" (merge $checksum (deepCopy $values.podAnnotations)) -}}
{{- end }}

{{/* Sets the values of replicas in their Deployment. */}}
{{- define "edgesync.replicas" -}}
{{- $values := .root.Values -}}
{{- $spec := .object.spec.template.spec -}}
{{- $container := first $spec.containers -}}
{{- $_ := set .object.spec "replicas" $values.replicas -}}
{{- $_ := set $container "resources" $values.resources -}}
{{- range $spec.volumes -}}
{{- if eq .name "state" -}}{{- $_ := set .emptyDir "sizeLimit" $values.store.sizeLimit -}}{{- end -}}
{{- end -}}
{{- if eq $values.broker.mode "external" -}}
{{- $_ := set $container "ports" (include "edgesync.without-mqtt" $container.ports | fromJsonArray) -}}
{{- end -}}
{{- if $values.service.sharedPort -}}
{{- $_ := set $container "ports" (append $container.ports (dict "name" "shared" "containerPort" 10443 "protocol" "TCP")) -}}
{{- end -}}
{{- with $values.broker.secret -}}
{{- /* Mode 0440, in decimal: the group is that of the Pod. */ -}}
{{- $volume := dict "name" "broker" "secret" (dict "secretName" . "defaultMode" 288) -}}
{{- $_ := set $spec "volumes" (append $spec.volumes $volume) -}}
{{- $mount := dict "name" "broker" "mountPath" "/etc/edgesync-broker" "readOnly" true -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
{{- end -}}
{{- if $values.signer.enabled -}}
{{- $signer := dict "name" "EDGESYNC_CLOUD_ENROLLMENT_SIGNER" "value" (printf "https://edgesync-signer.%s.svc:10002" .root.Release.Namespace) -}}
{{- $_ := set $container "env" (append $container.env $signer) -}}
{{- end -}}
{{- end }}

{{/* Prints ports without that of MQTT, as JSON. It is a name in Pods and Services, and a port in NetworkPolicies. */}}
{{- define "edgesync.without-mqtt" -}}
{{- $kept := list -}}
{{- range . -}}
{{- if ne (.name | default .port) "mqtt" -}}{{- $kept = append $kept . -}}{{- end -}}
{{- end -}}
{{- toJson $kept -}}
{{- end }}

{{/* Sets the values of the Service of the replicas. */}}
{{- define "edgesync.service" -}}
{{- $service := .root.Values.service -}}
{{- $spec := .object.spec -}}
{{- if ne $service.type "ClusterIP" -}}
{{- $_ := set $spec "type" $service.type -}}
{{- $_ := set $spec "externalTrafficPolicy" $service.externalTrafficPolicy -}}
{{- end -}}
{{- if eq $service.type "LoadBalancer" -}}
{{- with $service.loadBalancerClass -}}{{- $_ := set $spec "loadBalancerClass" . -}}{{- end -}}
{{- with $service.loadBalancerSourceRanges -}}{{- $_ := set $spec "loadBalancerSourceRanges" . -}}{{- end -}}
{{- end -}}
{{- with $service.annotations -}}{{- $_ := set $.object.metadata "annotations" . -}}{{- end -}}
{{- if eq .root.Values.broker.mode "external" -}}
{{- $_ := set $spec "ports" (include "edgesync.without-mqtt" $spec.ports | fromJsonArray) -}}
{{- end -}}
{{- with $service.sharedPort -}}
{{- $_ := set $spec "ports" (append $spec.ports (dict "name" "shared" "port" (int .) "protocol" "TCP" "targetPort" "shared")) -}}
{{- end -}}
{{- end }}

{{/* Removes rules in CEL. An older API server drops them, so that each upgrade would add them. */}}
{{- define "edgesync.without-rules" -}}
{{- if kindIs "map" . -}}
{{- $_ := unset . "x-kubernetes-validations" -}}
{{- range . -}}{{- include "edgesync.without-rules" . -}}{{- end -}}
{{- else if kindIs "slice" . -}}
{{- range . -}}{{- include "edgesync.without-rules" . -}}{{- end -}}
{{- end -}}
{{- end }}

{{/* Applies the values to an object of the manifests. */}}
{{- define "edgesync.adapt" -}}
{{- $values := .root.Values -}}
{{- $object := .object -}}
{{- include "edgesync.move" . -}}
{{- $id := printf "%s/%s" $object.kind $object.metadata.name -}}
{{- if has $object.kind (list "Namespace" "CustomResourceDefinition") -}}
{{- /* Their deletion deletes the CA, members and rules. */ -}}
{{- $_ := set $object.metadata "annotations" (dict "helm.sh/resource-policy" "keep") -}}
{{- if semverCompare "<1.25.0-0" .root.Capabilities.KubeVersion.Version -}}{{- include "edgesync.without-rules" $object.spec -}}{{- end -}}
{{- else if eq $object.kind "Deployment" -}}
{{- include "edgesync.pods" . -}}
{{- if eq $object.metadata.name "edgesync-signer" -}}
{{- $_ := set $object.spec "replicas" $values.signer.replicas -}}
{{- $_ := set (first $object.spec.template.spec.containers) "resources" $values.signer.resources -}}
{{- else -}}
{{- include "edgesync.replicas" . -}}
{{- end -}}
{{- else if eq $id "Service/edgesync-cloud" -}}
{{- include "edgesync.service" . -}}
{{- else if eq $id "NetworkPolicy/edgesync-cloud" -}}
{{- $ingress := first $object.spec.ingress -}}
{{- if eq $values.broker.mode "external" -}}
{{- $_ := set $ingress "ports" (include "edgesync.without-mqtt" $ingress.ports | fromJsonArray) -}}
{{- end -}}
{{- if $values.service.sharedPort -}}
{{- $_ := set $ingress "ports" (append $ingress.ports (dict "protocol" "TCP" "port" "shared")) -}}
{{- end -}}
{{- else if and (eq $id "RoleBinding/edgesync-signer") $values.signer.enabled -}}
{{- /* The right to the keys goes to the signer. */ -}}
{{- $_ := set (first $object.subjects) "name" "edgesync-signer" -}}
{{- else if eq $object.kind "PodDisruptionBudget" -}}
{{- if not (.root.Capabilities.APIVersions.Has "policy/v1") -}}{{- $_ := set $object "apiVersion" "policy/v1beta1" -}}{{- end -}}
{{- else if eq $object.kind "PodMonitor" -}}
{{- $_ := set $object.metadata "labels" (merge $object.metadata.labels (deepCopy $values.podMonitor.labels)) -}}
{{- $_ := set (first $object.spec.podMetricsEndpoints) "interval" $values.podMonitor.interval -}}
{{- end -}}
{{- end }}
