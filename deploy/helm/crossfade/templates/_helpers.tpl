{{- /* Name of the Deployment and of the objects that belong to it. */}}
{{- define "crossfade.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := .Release.Name -}}
{{- if not (contains "crossfade" $name) }}{{ $name = printf "%s-crossfade" $name }}{{ end -}}
{{- printf "%s-controller" ($name | trunc 52 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "crossfade.serviceAccountName" -}}
{{- $own := ternary (include "crossfade.fullname" .) "" .Values.serviceAccount.create -}}
{{- required "serviceAccount.name: without serviceAccount.create, name the service account" (.Values.serviceAccount.name | default $own) -}}
{{- end -}}

{{- define "crossfade.image" -}}
{{- $repository := required "image.repository: name the image that you built and pushed, as in --set image.repository=registry.example/crossfade" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* The environment of the controller. */}}
{{- define "crossfade.env" -}}
{{- if .Values.watchNamespace }}
- {name: CROSSFADE_NAMESPACE, value: {{ .Values.watchNamespace | quote }}}
- {name: CROSSFADE_LEASE_NAMESPACE, value: {{ .Release.Namespace | quote }}}
{{- else }}
- {name: CROSSFADE_ALL_NAMESPACES, value: "true"}
{{- end }}
- {name: CROSSFADE_ADMIN, value: "0.0.0.0:9465"}
- {name: CROSSFADE_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
{{- if ne .Values.log.level "info" }}
- {name: CROSSFADE_LOG, value: {{ .Values.log.level | quote }}}
{{- end }}
{{- if ne (include "crossfade.fullname" .) "crossfade-controller" }}
- {name: CROSSFADE_LEASE_NAME, value: {{ include "crossfade.fullname" . | quote }}}
{{- end }}
{{- if .Values.rollouts.enabled }}
- {name: CROSSFADE_ROLLOUTS, value: "true"}
{{- end }}
{{- if .Values.dryRun }}
- {name: CROSSFADE_DRY_RUN, value: "true"}
{{- end }}
{{- if .Values.allowAnyTarget }}
- {name: CROSSFADE_ALLOW_ANY_TARGET, value: "true"}
{{- end }}
{{- if ne .Values.clusterDomain "cluster.local" }}
- {name: CROSSFADE_CLUSTER_DOMAIN, value: {{ .Values.clusterDomain | quote }}}
{{- end }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- with .Values.env }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- define "crossfade.selectorLabels" -}}
app.kubernetes.io/name: crossfade-controller
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* Labels of every object. */}}
{{- define "crossfade.labels" -}}
{{ include "crossfade.selectorLabels" . }}
app.kubernetes.io/part-of: crossfade
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") | quote }}
{{- end -}}

{{- /* An object, by kind and name, from one of the files/, which are links to deploy/: (list $ "files/x.yaml" "Kind" "name") */}}
{{- define "crossfade.object" -}}
{{- $root := index . 0 }}{{ $file := index . 1 }}{{ $kind := index . 2 }}{{ $name := index . 3 -}}
{{- range $text := splitList "\n---\n" ($root.Files.Get $file) -}}
{{- $object := fromYaml $text -}}
{{- if and (eq $object.kind $kind) (eq $object.metadata.name $name) }}{{ toYaml $object }}{{ end -}}
{{- end -}}
{{- end -}}
