{{- define "kvgate.labels" -}}
app.kubernetes.io/name: kvgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "kvgate.selector" -}}
app.kubernetes.io/name: kvgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "kvgate.redisName" -}}
{{ .Release.Name }}-redis
{{- end }}
{{- define "kvgate.shares" -}}
{{- if or .Values.redis.enabled .Values.redis.urlSecret.name }}true{{ end -}}
{{- end }}
