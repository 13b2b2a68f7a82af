package differential

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
)

// restartCases are about pods over a restart of the agent or the runtime.
func restartCases() []Case {
	const deaf = `[sh, -c, "trap '' TERM; while true; do sleep 1 & wait $!; done"]`
	const whole = `
initContainers:
- {name: init, command: [sh, -c, "echo x >/data/x; sleep 2"], volumeMounts: [{name: data, mountPath: /data}]}
- {name: side, restartPolicy: Always, startupProbe: {exec: {command: ["true"]}, periodSeconds: 1}}
containers:
- name: main
  readinessProbe: {exec: {command: ["true"]}, periodSeconds: 2}
  livenessProbe: {exec: {command: ["true"]}, periodSeconds: 2}
  volumeMounts: [{name: data, mountPath: /data}, {name: memory, mountPath: /memory}, {name: down, mountPath: /down}]
- {name: plain}
volumes:
- {name: data, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory}}
- {name: down, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
`
	cases := []Case{
		{
			Name: "restart-agent-running",
			Spec: whole,
			Steps: []Step{
				Running(), Aged("plain"), RestartAgent(), KillProcess("main"), Restarted("main", 1), Running(),
				Exec("main", "cat /data/x /down/name"), Inspect(),
			},
		},
		{
			Name:  "restart-agent-killed",
			Spec:  whole,
			Steps: []Step{Running(), Aged("plain"), KillAgent(), KillProcess("main"), Restarted("main", 1), Running()},
		},
		{
			Name: "restart-agent-never",
			Spec: `
restartPolicy: Never
containers:
- {name: good, command: [sh, -c, "exit 0"]}
- {name: main, command: [sh, -c, "while [ ! -e /tmp/end ]; do sleep 1; done; exit 3"]}
`,
			Steps: []Step{Terminated("good"), RestartAgent(), Exec("main", "touch /tmp/end"), Phase(v1.PodFailed)},
		},
		{
			Name: "restart-agent-on-failure",
			Spec: `
restartPolicy: OnFailure
containers: [{name: main, command: [sh, -c, "while [ ! -e /data/end ]; do sleep 1; done"], volumeMounts: [{name: data, mountPath: /data}]}]
volumes: [{name: data, emptyDir: {}}]
`,
			Ignore: []string{`logs/main/0\.log`}, // of the dead attempt before, which the kubelet removes each minute
			Steps: []Step{
				Running(), RestartAgent(), KillProcess("main"), Restarted("main", 1),
				Exec("main", "touch /data/end"), Phase(v1.PodSucceeded),
			},
		},
		{
			Name: "restart-agent-in-init",
			Spec: `
initContainers:
- {name: one, command: [sh, -c, "while [ ! -e /tmp/end ]; do sleep 1; done"]}
- {name: two, command: [sh, -c, "while [ ! -e /tmp/end ]; do sleep 1; done"]}
containers: [{name: main}]
`,
			Steps: []Step{
				Started("one"), Exec("one", "touch /tmp/end"), Started("two"), RestartAgent(),
				Exec("two", "touch /tmp/end"), Running(),
			},
		},
		{
			Name: "restart-agent-ending",
			Spec: `{terminationGracePeriodSeconds: 15, containers: [{name: main, command: ` + deaf +
				`}, {name: soon}]}`,
			Steps: []Step{Running(), Delete(-1), Event("Killing"), Called("StopContainer", "soon"), RestartAgent(),
				Gone()},
		},
		{
			Name:  "restart-agent-completed",
			Spec:  `{restartPolicy: Never, containers: [{name: main, command: [sh, -c, "exit 0"]}]}`,
			Steps: []Step{Phase(v1.PodSucceeded), RestartAgent(), Delete(-1), Gone()},
		},
		{
			Name: "restart-agent-crash-loop",
			Spec: `
containers:
- name: main
  command: [sh, -c, "sleep 1; echo x >>/data/x; if [ $(wc -l </data/x) = 3 ]; then exec sleep 3600; fi; exit 3"]
  volumeMounts: [{name: data, mountPath: /data}]
volumes: [{name: data, emptyDir: {}}]
`,
			Steps: []Step{BackedOff("main", 1), RestartAgent(), Restarted("main", 2)},
		},
		{
			Name:  "restart-died-without-agent",
			Spec:  `{containers: [{name: main}, {name: other}]}`,
			Steps: []Step{Running(), WithoutAgent(KillProcess("main")), Restarted("main", 1), Running()},
		},
		{
			Name:  "restart-ended-without-agent",
			Spec:  `{restartPolicy: Never, containers: [{name: main}]}`,
			Steps: []Step{Running(), WithoutAgent(KillProcess("main")), Phase(v1.PodFailed)},
		},
		{
			Name:  "restart-sandbox-died-without-agent",
			Spec:  `{containers: [{name: main}]}`,
			Steps: []Step{Running(), WithoutAgent(KillSandbox()), Restarted("main", 1), Running()},
		},
		{
			Name:  "restart-deleted-without-agent",
			Spec:  `{terminationGracePeriodSeconds: 3, containers: [{name: main, command: ` + deaf + `}]}`,
			Steps: []Step{Running(), WithoutAgent(Delete(-1)), Gone()},
		},
		{
			Name:  "restart-lost-without-agent",
			Spec:  `{initContainers: [{name: init, command: ["true"]}], containers: [{name: main}, {name: other}]}`,
			Steps: []Step{Running(), WithoutAgent(Lose("main")), Restarted("main", 1), Running()},
		},
		{
			Name: "restart-runtime-running",
			Spec: whole,
			Steps: []Step{
				Running(), RestartRuntime(), KillProcess("main"), Restarted("main", 1), Running(),
				Exec("main", "cat /data/x /down/name"),
			},
		},
		{
			Name: "restart-runtime-in-init",
			Spec: `
initContainers: [{name: init, command: [sh, -c, "while [ ! -e /tmp/end ]; do sleep 1; done"]}]
containers: [{name: main}]
`,
			Steps: []Step{Started("init"), RestartRuntime(), Exec("init", "touch /tmp/end"), Running()},
		},
	}
	for i := range cases {
		cases[i].Alone = true
		// A probe may come between the end of a container that was killed and the agent's notice of it.
		cases[i].Ignore = append(cases[i].Ignore,
			`events/"Warning","Unhealthy",.* container is in CONTAINER_EXITED state"`)
	}
	return cases
}

// WithoutAgent does steps while the agent does not run.
func WithoutAgent(steps ...Step) Step {
	name := "without-agent"
	for _, step := range steps {
		name += "-" + step.Name
	}
	return Step{Name: name, Do: func(ctx context.Context, s *Subject) error {
		err := s.Agent.Stop(ctx)
		for _, step := range steps {
			if err == nil {
				err = step.Do(ctx, s)
			}
		}
		return errors.Join(err, s.Agent.Start(ctx))
	}}
}
