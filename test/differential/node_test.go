package differential

import v1 "k8s.io/api/core/v1"

// nodeCases are about pods that the node ends or does not take, and about what changes while they run.
func nodeCases() []Case {
	return []Case{
		{
			Name: "node-evicted",
			// It is killed in every case, since the phase depends on the exit code.
			Spec: `
containers: [{name: main, command: [sh, -c, "trap '' TERM; while true; do sleep 1 & wait $!; done"], volumeMounts: [{name: data, mountPath: /data}]}]
volumes: [{name: data, emptyDir: {sizeLimit: 4Mi}}]
`,
			Steps: []Step{Started("main"), Exec("main", "head -c 8388608 /dev/zero >/data/x"), Phase(v1.PodFailed)},
		},
		{
			Name: "node-evicted-completes",
			Spec: `
containers: [{name: main, volumeMounts: [{name: data, mountPath: /data}]}]
volumes: [{name: data, emptyDir: {sizeLimit: 4Mi}}]
`,
			Steps: []Step{Started("main"), Exec("main", "head -c 8388608 /dev/zero >/data/x"), Ended()},
		},
		{
			Name:  "node-selector",
			Spec:  `{nodeSelector: {none: such}, containers: [{name: main}]}`,
			Steps: []Step{Phase(v1.PodFailed)},
		},
		{
			Name: "node-image-goes",
			Spec: `containers: [{name: main, imagePullPolicy: Never}, {name: other}]`,
			Steps: []Step{Running(), Patch(`spec: {containers: [{name: main, image: "edgecore.local/none:1"}]}`),
				Waiting("main", "ErrImageNeverPull")},
		},
		{
			Name:    "node-configmap-changes",
			Objects: "{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: one, b: two}}",
			Spec: `
containers: [{name: main, volumeMounts: [{name: c, mountPath: /c}]}]
volumes: [{name: c, configMap: {name: @NAME@}}]
`,
			Steps: []Step{
				Running(),
				Apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: @NAME@}, data: {a: three, c: four}}"),
				Patch("metadata: {labels: {look: again}}"), Shows("main", "/c/a", "three"), Inspect(),
			},
		},
		{
			Name: "node-ephemeral",
			Spec: `containers: [{name: main}]`,
			Steps: []Step{
				Running(),
				Patch(`spec: {ephemeralContainers: [{name: debug, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, command: [sleep, "3600"], targetContainerName: main}]}`, "ephemeralcontainers"),
				Started("debug"), Inspect(),
			},
		},
		{
			Name: "node-local-claim",
			Objects: `
{apiVersion: v1, kind: PersistentVolume, metadata: {name: "@NODE@-@NAME@", annotations: {pv.beta.kubernetes.io/gid: "4321"}}, spec: {capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], storageClassName: "", local: {path: @DIR@}, claimRef: {namespace: @NODE@, name: @NAME@}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [@NODE@]}]}]}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: @NAME@}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: "@NODE@-@NAME@", resources: {requests: {storage: 1Mi}}}}
`,
			Spec: `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, persistentVolumeClaim: {claimName: @NAME@}}]
`,
			Steps: []Step{Running(), Inspect()},
			// the claim is bound while the pod starts
			Ignore: []string{`events/"Warning","FailedMount",.*PVC is not bound"`},
		},
	}
}
