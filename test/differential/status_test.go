package differential

import v1 "k8s.io/api/core/v1"

// statusCases are about the status of a pod over its life: phases, conditions, states of containers, addresses.
func statusCases() []Case {
	return []Case{
		{
			Name: "status-failed-init",
			Spec: `
restartPolicy: Never
initContainers: [{name: first, command: [sh, -c, "sleep 2; exit 3"]}, {name: second}]
containers: [{name: main}]
`,
			Steps: []Step{Phase(v1.PodFailed)},
		},
		{
			Name: "status-sidecar-flushes",
			Spec: `
restartPolicy: Never
terminationGracePeriodSeconds: 20
initContainers: [{name: side, restartPolicy: Always, command: [sh, -c, "trap 'sleep 4; exit 0' TERM; while true; do sleep 1 & wait $!; done"]}]
containers: [{name: main, command: [sh, -c, "sleep 3"]}]
`,
			Steps: []Step{Phase(v1.PodSucceeded)},
		},
		{
			Name:  "status-deleted-while-mounting",
			Spec:  `{containers: [{name: main, volumeMounts: [{name: data, mountPath: /data}]}], volumes: [{name: data, secret: {secretName: missing}}]}`,
			Steps: []Step{Event("FailedMount"), Waiting("main", "ContainerCreating"), Delete(-1), Gone()},
		},
		{
			Name:  "status-one-never-starts",
			Spec:  `{containers: [{name: zeta}, {name: main, env: [{name: X, valueFrom: {configMapKeyRef: {name: missing, key: x}}}]}]}`,
			Steps: []Step{Waiting("main", "CreateContainerConfigError"), Delete(-1), Gone()},
		},
		{
			Name:  "status-order",
			Spec:  `{initContainers: [{name: two, command: [sleep, "1"]}, {name: one, command: [sleep, "1"]}], containers: [{name: zeta}, {name: alpha}, {name: main}]}`,
			Steps: []Step{Running(), Delete(-1), Gone()},
		},
		{
			Name:  "status-crash-loop-deleted",
			Spec:  `{containers: [{name: main, command: [sh, -c, "sleep 2; exit 3"]}]}`,
			Steps: []Step{BackedOff("main", 1), Delete(-1), Gone()},
		},
		{
			Name: "status-restart-all",
			Spec: `
restartPolicy: Never
initContainers: [{name: init, command: [sleep, "1"]}]
containers:
- name: main
  volumeMounts: [{name: data, mountPath: /data}]
  command: [sh, -c, "sleep 3; if [ -e /data/x ]; then exec sleep 1000; fi; touch /data/x; exit 88"]
  restartPolicy: Never
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88]}}]
- {name: other}
volumes: [{name: data, emptyDir: {}}]
`,
			Steps: []Step{Restarted("main", 1), Running()},
		},
		{
			Name:  "status-sandbox-dies",
			Spec:  `{containers: [{name: main}]}`,
			Steps: []Step{Running(), KillSandbox(), Restarted("main", 1), Running()},
		},
		{
			Name:  "status-host-network",
			Spec:  `{hostNetwork: true, containers: [{name: main}]}`,
			Steps: []Step{Running(), Delete(-1), Gone()},
		},
		{
			Name:  "status-rejected",
			Spec:  `{containers: [{name: main, resources: {requests: {cpu: "4000"}}}]}`,
			Steps: []Step{Phase(v1.PodFailed), Delete(-1), Gone()},
		},
		{
			Name: "status-resources",
			Spec: `
containers:
- {name: main, resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}
- {name: bare}
`,
			Steps: []Step{Running(), Delete(-1), Gone()},
		},
		{
			Name: "status-messages",
			Spec: `
restartPolicy: Never
initContainers: [{name: init, command: [sleep, "1"]}]
containers:
- {name: one, command: [sh, -c, "sleep 2; head -c 4096 /dev/zero | tr '\\0' m >/dev/termination-log; exit 1"]}
- {name: two, command: [sh, -c, "sleep 2; exit 0"]}
- {name: three, command: [sh, -c, "sleep 2; echo logged; exit 1"], terminationMessagePolicy: FallbackToLogsOnError}
`,
			Steps: []Step{Phase(v1.PodFailed)},
		},
	}
}
