package conformance

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// hookRows are about postStart and preStop.
func hookRows() []row {
	return []row{
		{
			name: "post-start",
			spec: `
terminationGracePeriodSeconds: 10
containers:
- {name: web, image: "edgecore.local/demo:1", command: [httpd, -f, -vv, -p, "8080", -h, /www], ports: [{name: here, containerPort: 8080}], readinessProbe: {tcpSocket: {port: here}, periodSeconds: 1},
   lifecycle: {postStart: {exec: {command: [sh, -c, "sleep 2; until wget -q -O /tmp/page http://127.0.0.1:8080/; do sleep 0.1; done"]}}}}
- {name: named, ports: [{name: web, containerPort: 8080}], lifecycle: {postStart: {httpGet: {path: /named, port: web, httpHeaders: [{name: X, value: y}]}}}}
- {name: fallback, lifecycle: {postStart: {httpGet: {path: /fallback, port: 8080, scheme: HTTPS}}}}
- {name: slept, lifecycle: {postStart: {sleep: {seconds: 2}}}}
`,
			check: func(p *pod) {
				// Until its hook is done a container is not running in the status.
				p.status("a hook runs", func(s *v1.PodStatus) error {
					if _, err := p.container("web"); err != nil {
						return err
					}
					return nil
				})
				if c := containerStatus(&p.get().Status, "web"); c != nil && c.State.Running != nil {
					if out, err := p.tryExec("web", "test", "-e", "/tmp/page"); err != nil {
						p.Errorf("it is reported running before its hook was done: %v %s", err, out)
					}
				}
				s := p.running().Status
				p.says("web", "test -e /tmp/page && echo done", "done")
				p.logged("web", "url:/named")
				p.logged("web", "url:/fallback")
				p.event("LifecycleHTTPFallback", "got HTTP response")
				if slept, ready := containerStatus(&s, "slept").State.Running,
					condition(&s, v1.PodReady); !ready.LastTransitionTime.After(slept.StartedAt.Time) {
					p.Errorf("ready at %v, want it after %v, when the container with the last hook started",
						ready.LastTransitionTime, slept.StartedAt)
				}
			},
		},
		{
			name: "post-start-fails",
			spec: `
containers:
- {name: exec, lifecycle: {postStart: {exec: {command: [sh, -c, "exit 3"]}}}}
- {name: good}
- {name: tcp, lifecycle: {postStart: {tcpSocket: {port: 80}}}}
`,
			check: func(p *pod) {
				p.event("FailedPostStartHook", "PostStartHook failed")
				p.event("Killing", "FailedPostStartHook")
				p.status("it is restarted", func(s *v1.PodStatus) error {
					exec, good := containerStatus(s, "exec"), containerStatus(s, "good")
					if exec == nil || exec.RestartCount < 1 || exec.Ready ||
						exec.LastTerminationState.Terminated == nil || good.State.Running == nil ||
						good.RestartCount > 0 {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
				p.waits("exec", "CrashLoopBackOff", "restarting failed container=exec")
			},
		},
		{
			name: "post-start-fails-never",
			spec: `
restartPolicy: Never
containers: [{name: main, lifecycle: {postStart: {exec: {command: [/nowhere]}}}}]
`,
			check: func(p *pod) {
				p.status("it has ended", func(s *v1.PodStatus) error { return ended(s, "main") })
				p.event("FailedPostStartHook", "PostStartHook failed")
			},
		},
		{
			name: "pre-stop",
			spec: `
terminationGracePeriodSeconds: 20
containers:
- name: exec
  image: edgecore.local/demo:1
  command: [sh, -c, "trap 'echo end >>/tmp/log; cat /tmp/log >/dev/termination-log; exit 0' TERM; while true; do sleep 1 & wait $!; done"]
  lifecycle: {preStop: {exec: {command: [sh, -c, "echo hook >/tmp/log; sleep 1; echo slept >>/tmp/log"]}}}
- name: http
  image: edgecore.local/demo:1
  command: [sh, -c, "httpd -p 8081 -h /www -vv -f 2>/tmp/log & trap 'cat /tmp/log >/dev/termination-log; exit 0' TERM; while true; do sleep 1 & wait $!; done"]
  ports: [{name: end, containerPort: 8081}]
  lifecycle: {preStop: {httpGet: {path: /bye, port: end}}}
- {name: slept, lifecycle: {preStop: {sleep: {seconds: 3}}}}
`,
			check: func(p *pod) {
				p.running()
				p.says("http", "wget -q -O /dev/null http://127.0.0.1:8081/ && echo up", "up")
				s := p.end(nil)
				if c := containerStatus(s, "exec").State.Terminated; c.Message != "hook\nslept\nend\n" ||
					c.ExitCode != 0 {
					p.Errorf("exec ended with %+v, want the message hook, slept, end and exit code 0", c)
				}
				if c := containerStatus(s, "http").State.Terminated; !strings.Contains(c.Message, "url:/bye") {
					p.Errorf("http ended with %+v, want the message url:/bye", c)
				}
				http := containerStatus(s, "http").State.Terminated
				if c := containerStatus(s, "slept").State.Terminated; c.ExitCode != 0 ||
					!c.FinishedAt.After(http.FinishedAt.Time) {
					p.Errorf("slept ended with %+v, want exit code 0, after http, which ended at %v", c,
						http.FinishedAt)
				}
			},
		},
		{
			name: "pre-stop-fails",
			spec: `
terminationGracePeriodSeconds: 100
containers:
- {name: code, lifecycle: {preStop: {exec: {command: [sh, -c, "exit 4"]}}}}
- {name: port, lifecycle: {preStop: {httpGet: {port: 9999}}}}
- {name: tcp, lifecycle: {preStop: {tcpSocket: {port: 80}}}}
`,
			check: func(p *pod) {
				p.running()
				p.end(nil)
				p.event("FailedPreStopHook", "PreStopHook failed")
			},
		},
		{
			name: "pre-stop-too-long",
			spec: `
terminationGracePeriodSeconds: 2
containers: [{name: main, image: "edgecore.local/demo:1", command: [sh, -c, "trap 'sleep 1; echo cleaned >/dev/termination-log; sleep 80000' TERM; while true; do sleep 1 & wait $!; done"], lifecycle: {preStop: {exec: {command: [sleep, "80000"]}}}}]
`,
			check: func(p *pod) {
				p.running()
				s := p.end(nil)
				if c := containerStatus(s, "main").State.Terminated; c.Message != "cleaned\n" || c.ExitCode != 137 {
					p.Errorf("main ended with %+v, want the message cleaned and exit code 137", c)
				}
			},
		},
		{
			name: "pre-stop-shorter-grace",
			spec: `
terminationGracePeriodSeconds: 86400
containers: [{name: main, lifecycle: {preStop: {exec: {command: [sleep, "80000"]}}}}, {name: slow, lifecycle: {preStop: {sleep: {seconds: 80000}}}}]
`,
			check: func(p *pod) {
				p.running()
				p.patch("metadata: {finalizers: [edgecore.local/look]}")
				pods := p.node.api.CoreV1().Pods(p.node.name)
				env.Must(p, pods.Delete(p.Context(), p.name, metav1.DeleteOptions{}))
				p.event("Killing", "Stopping container main")
				env.Must(p,
					pods.Delete(p.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](3)}))
				p.waitEnded()
				p.release()
			},
		},
		{
			name: "pre-stop-container-ends",
			spec: `
terminationGracePeriodSeconds: 86400
containers: [{name: main, image: "edgecore.local/demo:1", command: [sh, -c, "until test -e /tmp/go; do sleep 0.2; done"], lifecycle: {preStop: {exec: {command: [sh, -c, "touch /tmp/go; sleep 80000"]}}}}]
`,
			check: func(p *pod) {
				p.running()
				p.end(nil) // the hook of a container that has ended is not waited for
			},
		},
	}
}
