package differential

import v1 "k8s.io/api/core/v1"

// resourceCases are about requests and limits, and their change.
func resourceCases() []Case {
	return []Case{
		{
			Name:  "resources-zero-request",
			Spec:  `containers: [{name: main, resources: {limits: {cpu: 1, memory: 64Mi}, requests: {cpu: "0", memory: 64Mi}}}]`,
			Steps: []Step{Running(), Inspect()},
		},
		{
			Name: "resources-of-the-pod",
			Spec: `
resources: {limits: {cpu: 500m, memory: 128Mi}, requests: {cpu: 200m, memory: 64Mi}}
containers: [{name: main}, {name: own, resources: {limits: {memory: 32Mi}}}]
`,
			Steps: []Step{Running(), Inspect()},
		},
		{
			Name: "resources-sidecar",
			Spec: `
initContainers: [{name: side, restartPolicy: Always, resources: {requests: {memory: 16Mi}}}]
containers:
- {name: main, resources: {requests: {cpu: 10m, memory: 256Mi}}}
- {name: small, resources: {requests: {memory: 64Mi}, limits: {memory: 128Mi}}}
`,
			Steps: []Step{Running(), Inspect()},
		},
		{
			Name: "resources-resized",
			Spec: `containers: [{name: main, resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}]`,
			Steps: []Step{
				Running(),
				Patch("spec: {containers: [{name: main, resources: {requests: {cpu: 150m}, limits: {cpu: 300m}}}]}",
					"resize"),
				Event("ResizeCompleted"), Inspect(),
			},
		},
		{
			Name: "resources-resize-infeasible",
			Spec: `containers: [{name: main, resources: {requests: {cpu: 100m}}}]`,
			Steps: []Step{
				Running(), Patch(`spec: {containers: [{name: main, resources: {requests: {cpu: "4000"}}}]}`, "resize"),
				Condition(v1.PodResizePending, v1.PodReasonInfeasible),
			},
		},
	}
}
