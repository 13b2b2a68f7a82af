package differential

import v1 "k8s.io/api/core/v1"

// basicCases are about containers as such.
func basicCases() []Case {
	return []Case{
		{
			Name: "basic-running",
			Spec: `
initContainers: [{name: init, command: [sh, -c, "echo first; sleep 2"]}]
containers:
- {name: main, ports: [{containerPort: 8080}], env: [{name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}
- {name: bounded, resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}}
`,
			Steps: []Step{Running(), Inspect(), Exec("main", "cat /proc/1/cmdline | tr '\\0' ' '; hostname; id")},
		},
		{
			Name: "basic-job",
			Spec: `
restartPolicy: Never
containers:
- {name: good, command: [sh, -c, "echo done; sleep 2"]}
- {name: bad, command: [sh, -c, "sleep 3; echo why >/dev/termination-log; exit 3"]}
`,
			Steps: []Step{Phase(v1.PodFailed)},
		},
	}
}
