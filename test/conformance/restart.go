package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// restarted returns an error while a container has not been restarted so often.
func restarted(s *v1.PodStatus, name string, times int32) error {
	if c := containerStatus(s, name); c == nil || c.RestartCount < times {
		return fmt.Errorf("containers %s, want %d restarts of %s", states(s), times, name)
	}
	return nil
}

// restartRows are about what follows from the end of a container.
func restartRows() []row {
	return []row{
		{
			name: "restart-always",
			spec: `containers: [{name: main, image: "edgecore.local/demo:1", command: [sh, -c, "sleep 1"]}]`,
			check: func(p *pod) {
				s := p.status("it was restarted", func(s *v1.PodStatus) error { return restarted(s, "main", 1) }).Status
				if last := containerStatus(&s, "main").LastTerminationState.Terminated; last == nil ||
					last.Reason != "Completed" || last.ExitCode != 0 {
					p.Errorf("last state = %+v, want Completed, exit code 0", last)
				}
				p.waits("main", "CrashLoopBackOff", "restarting failed container=main pod="+p.name+"_"+p.node.name)
				p.event("BackOff", "Back-off restarting failed container main in pod "+p.name)
				if got := p.get().Status.Phase; got != v1.PodRunning {
					p.Errorf("phase = %s, want Running", got)
				}
			},
		},
		{
			name: "restart-on-failure",
			spec: `
restartPolicy: OnFailure
volumes: [{name: shared, emptyDir: {}}]
containers:
- {name: twice, image: "edgecore.local/demo:1", command: [sh, -c, "test -e /shared/x && exit 0; touch /shared/x; exit 5"], volumeMounts: [{name: shared, mountPath: /shared}]}
- {name: once, image: "edgecore.local/demo:1", command: ["true"]}
`,
			check: func(p *pod) {
				s := p.phase(v1.PodSucceeded).Status
				twice, once := containerStatus(&s, "twice"), containerStatus(&s, "once")
				if twice.RestartCount != 1 || once.RestartCount != 0 ||
					twice.LastTerminationState.Terminated.ExitCode != 5 ||
					twice.LastTerminationState.Terminated.Reason != "Error" {
					p.Errorf("containers = %s, last state of twice %v, want one restart after 5, and none of once",
						states(&s), twice.LastTerminationState.Terminated)
				}
			},
		},
		{
			name: "restart-never",
			spec: `
restartPolicy: Never
containers: [{name: bad, image: "edgecore.local/demo:1", command: [sh, -c, "exit 9"]}, {name: good, image: "edgecore.local/demo:1", command: [sleep, "1"]}]
`,
			check: func(p *pod) {
				s := p.phase(v1.PodFailed).Status
				if bad := containerStatus(&s, "bad"); bad.State.Terminated.ExitCode != 9 || bad.RestartCount != 0 {
					p.Errorf("container bad = %+v, want exit code 9, no restart", bad)
				}
				if c := condition(&s, v1.PodReady); c.Reason != "PodFailed" {
					p.Errorf("condition Ready = %+v, want the reason PodFailed", c)
				}
			},
		},
		{
			name: "container-restart-policy",
			spec: `
restartPolicy: OnFailure
containers:
- {name: once, image: "edgecore.local/demo:1", command: ["false"], restartPolicy: Never}
- {name: again, image: "edgecore.local/demo:1", command: [sh, -c, "sleep 1; exit 0"], restartPolicy: Always}
`,
			check: func(p *pod) {
				s := p.status("one was restarted", func(s *v1.PodStatus) error { return restarted(s, "again", 1) }).
					Status
				if once := containerStatus(&s, "once"); once.RestartCount != 0 || once.State.Terminated == nil ||
					s.Phase != v1.PodRunning {
					p.Errorf("phase %s, containers %s; want Running, and once ended with no restart", s.Phase,
						states(&s))
				}
			},
		},
		{
			name: "restart-rules",
			spec: `
restartPolicy: Never
volumes: [{name: shared, emptyDir: {}}]
containers:
- name: rule
  image: edgecore.local/demo:1
  command: [sh, -c, "echo x >>/shared/x; test $(wc -l </shared/x) -ge 2 && exit 7; exit 42"]
  restartPolicy: Never
  restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
  volumeMounts: [{name: shared, mountPath: /shared}]
- name: other
  image: edgecore.local/demo:1
  command: [sh, -c, "exit 42"]
  restartPolicy: Never
  restartPolicyRules: [{action: Restart, exitCodes: {operator: NotIn, values: [42]}}]
`,
			check: func(p *pod) {
				s := p.phase(v1.PodFailed).Status
				rule, other := containerStatus(&s, "rule"), containerStatus(&s, "other")
				if rule.RestartCount != 1 || rule.State.Terminated.ExitCode != 7 ||
					rule.LastTerminationState.Terminated.ExitCode != 42 || other.RestartCount != 0 {
					p.Errorf("containers = %s, last state of rule %v, want one restart after 42, then 7, no other",
						states(&s), rule.LastTerminationState.Terminated)
				}
			},
		},
		{
			name: "init-restart-policy",
			spec: `
initContainers: [{name: once, image: "edgecore.local/demo:1", command: ["false"], restartPolicy: Never}]
containers: [{name: main}]
`,
			check: func(p *pod) {
				s := p.phase(v1.PodFailed).Status
				if c := containerStatus(&s, "once"); c.State.Terminated == nil || c.RestartCount != 0 {
					p.Errorf("container once = %+v, want terminated, no restart", c)
				}
			},
		},
		{
			name: "init-restart-rules",
			spec: `
restartPolicy: Never
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- name: rule
  image: edgecore.local/demo:1
  command: [sh, -c, "test -e /shared/x && exit 0; touch /shared/x; exit 42"]
  restartPolicy: Never
  restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
  volumeMounts: [{name: shared, mountPath: /shared}]
containers: [{name: main}]
`,
			check: func(p *pod) {
				s := p.running().Status
				if c := containerStatus(&s, "rule"); c.RestartCount != 1 || c.State.Terminated == nil ||
					c.State.Terminated.ExitCode != 0 {
					p.Errorf("container rule = %+v, want one restart, exit code 0", c)
				}
			},
		},
		{
			name: "restart-all-containers",
			spec: `
restartPolicy: Never
terminationGracePeriodSeconds: 120
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- {name: setup, image: "edgecore.local/demo:1", command: [sh, -c, "echo setup >>/shared/log"], volumeMounts: [{name: shared, mountPath: /shared}]}
- name: watcher
  image: edgecore.local/demo:1
  restartPolicy: Always
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88]}}]
  command: [sh, -c, "test $(grep -c setup /shared/log) -ge 2 && exec sleep 3600; until grep -q main /shared/log; do sleep 0.2; done; sleep 1; exit 88"]
  volumeMounts: [{name: shared, mountPath: /shared}]
containers:
- {name: main, image: "edgecore.local/demo:1", command: [sh, -c, "echo main >>/shared/log; trap '' TERM; while true; do sleep 1 & wait $!; done"], volumeMounts: [{name: shared, mountPath: /shared}],
   lifecycle: {preStop: {exec: {command: [sh, -c, "echo hook >>/shared/log; sleep 100"]}}}}
- {name: done, image: "edgecore.local/demo:1", command: [sh, -c, "echo done"]}
`,
			check: func(p *pod) {
				before := p.status("it runs", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "main"); c == nil || c.State.Running == nil {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				}).Status
				s := p.status("all were restarted", func(s *v1.PodStatus) error {
					for _, name := range []string{"setup", "watcher", "main", "done"} {
						if err := restarted(s, name, 1); err != nil {
							return err
						}
					}
					if c := containerStatus(s, "main"); c.State.Running == nil {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				}).Status
				if s.PodIP != before.PodIP || s.Phase != v1.PodRunning {
					p.Errorf("phase %s, address %s, want %s, %s", s.Phase, s.PodIP, v1.PodRunning, before.PodIP)
				}
				p.says("main", "tr '\n' ' ' </shared/log", "setup main setup main ")
				if c := condition(&s, v1.AllContainersRestarting); c == nil || c.Status != v1.ConditionFalse {
					p.Errorf("condition = %+v, want False", c)
				}
				if c := containerStatus(&s, "watcher").LastTerminationState.Terminated; c == nil ||
					c.Reason != "RestartingAllContainers" || c.ExitCode != 137 {
					p.Errorf("last state of the watcher = %+v, want RestartingAllContainers, 137", c)
				}
				p.deleteWithin(1)
			},
		},
	}
}
