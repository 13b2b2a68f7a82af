package differential

// volumeCases are about volumes, and what lies in them.
func volumeCases() []Case {
	return []Case{
		{
			Name: "volumes-filled",
			Objects: "{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: one, b: " +
				"two}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, stringData: {key: hush}}",
			Spec: `
containers:
- name: main
  resources: {limits: {memory: 32Mi}}
  volumeMounts:
  - {name: c, mountPath: /c}
  - {name: s, mountPath: /s}
  - {name: d, mountPath: /d}
  - {name: p, mountPath: /p}
  - {name: disk, mountPath: /disk}
  - {name: memory, mountPath: /memory}
  - {name: disk, mountPath: /c/nested/deep}
  - {name: memory, mountPath: /made, subPath: x/y}
volumes:
- {name: c, configMap: {name: @NAME@, items: [{key: a, path: x/a}, {key: b, path: b, mode: 0400}]}}
- {name: s, secret: {secretName: @NAME@}}
- {name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
- {name: p, projected: {sources: [{configMap: {name: @NAME@}}, {secret: {name: @NAME@}}]}}
- {name: disk, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory}}
- {name: unused, secret: {secretName: missing}}
`,
			Steps: []Step{Running(), Inspect()},
		},
		{
			Name: "volumes-of-a-group",
			Objects: "{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: one, b: " +
				"two}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, stringData: {key: hush}}",
			Spec: `
securityContext: {fsGroup: 3456, runAsUser: 1000, runAsGroup: 1000, supplementalGroups: [77]}
containers:
- name: main
  volumeMounts:
  - {name: c, mountPath: /c}
  - {name: s, mountPath: /s}
  - {name: d, mountPath: /d}
  - {name: disk, mountPath: /disk}
  - {name: memory, mountPath: /memory}
  - {name: disk, mountPath: /s/nested}
  - {name: memory, mountPath: /made, subPath: x}
volumes:
- {name: c, configMap: {name: @NAME@, items: [{key: a, path: x/a}]}}
- {name: s, secret: {secretName: @NAME@, defaultMode: 0400}}
- {name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
- {name: disk, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory}}
`,
			Steps: []Step{Running(), Inspect()},
		},
		{
			Name: "volumes-subpath",
			Spec: `
initContainers:
- name: prepare
  command: [sh, -c, "ln -s / /v/out; ln -s ../v/real /v/up-and-back; mkdir /v/real; ln -s gone /v/nothing; touch /v/file; sleep 1"]
  volumeMounts: [{name: v, mountPath: /v}]
containers:
- {name: main}
- {name: out, volumeMounts: [{name: v, mountPath: /x, subPath: out/etc}]}
- {name: nothing, volumeMounts: [{name: v, mountPath: /x, subPath: nothing}]}
- {name: below, volumeMounts: [{name: v, mountPath: /x, subPath: file/x}]}
- {name: back, volumeMounts: [{name: v, mountPath: /x, subPath: up-and-back}]}
- {name: expr, env: [{name: EMPTY, value: ""}], volumeMounts: [{name: v, mountPath: /x, subPathExpr: "$(EMPTY)/$(GONE)"}]}
volumes: [{name: v, emptyDir: {}}]
`,
			Steps: []Step{
				Waiting("out", "CreateContainerConfigError"), Waiting("nothing", "CreateContainerConfigError"),
				Waiting("below", "CreateContainerConfigError"), Waiting("expr", "CreateContainerConfigError"),
			},
		},
		{
			Name: "volumes-local-propagation",
			Objects: `
{apiVersion: v1, kind: PersistentVolume, metadata: {name: "@NODE@-@NAME@"}, spec: {capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], storageClassName: "", local: {path: @DIR@}, claimRef: {namespace: @NODE@, name: @NAME@}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [@NODE@]}]}]}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: @NAME@}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: "@NODE@-@NAME@", resources: {requests: {storage: 1Mi}}}}
`,
			Spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]}]
volumes: [{name: v, persistentVolumeClaim: {claimName: @NAME@}}]
`,
			Steps: []Step{Running(), Inspect()},
		},
	}
}
