package conformance

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// lifecycleRows are about what containers are beside their command, and about ephemeral containers.
func lifecycleRows() []row {
	return []row{
		{
			name: "ephemeral-container",
			spec: `
volumes: [{name: shared, emptyDir: {}}]
containers: [{name: main, image: "edgecore.local/demo:1", command: [sh, -c, "echo text >/shared/file; exec sleep 4242"], volumeMounts: [{name: shared, mountPath: /shared}]}, {name: other}]
`,
			check: func(p *pod) {
				p.running()
				p.patch(`
spec:
  ephemeralContainers:
  - {name: look, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, targetContainerName: main, command: [sh, -c, "sleep 3600"], env: [{name: WHO, value: me}], volumeMounts: [{name: shared, mountPath: /shared}]}
`, "ephemeralcontainers")
				p.status("it runs", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "look"); c == nil || c.State.Running == nil {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
				if out := p.exec("look",
					`cat /proc/1/cmdline | tr '\0' ' '; cat /shared/file; echo $WHO`); !strings.HasPrefix(out,
					"sleep 4242 ") || !strings.HasSuffix(out, "text\nme") {
					p.Errorf("it sees %q, want \"sleep 4242 ...text\\nme\"", out)
				}
				p.patch(`
spec:
  ephemeralContainers:
  - {name: fails, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, command: [sh, -c, "exit 6"]}
  - {name: lost, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, targetContainerName: main, command: [sleep, "1"]}
`, "ephemeralcontainers")
				s := p.status("they have ended", func(s *v1.PodStatus) error { return ended(s, "fails", "lost") }).
					Status
				if c := containerStatus(&s, "fails"); c.State.Terminated.ExitCode != 6 || c.RestartCount != 0 ||
					s.Phase != v1.PodRunning {
					p.Errorf("phase %s, containers %s; want Running, and fails ended once with exit code 6", s.Phase,
						states(&s))
				}
				p.running()
			},
		},
		{
			name: "ephemeral-container-job",
			spec: `
restartPolicy: Never
containers: [{name: main, image: "edgecore.local/demo:1", command: [sh, -c, "until test -e /tmp/go; do sleep 0.2; done"]}]
`,
			check: func(p *pod) {
				p.running()
				p.patch(`
spec:
  ephemeralContainers: [{name: look, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, command: [sleep, "3600"]}]
`, "ephemeralcontainers")
				p.status("it runs", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "look"); c == nil || c.State.Running == nil {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
				p.exec("main", "touch /tmp/go")
				p.phase(v1.PodSucceeded)
			},
		},
		{
			name: "active-deadline",
			// Long enough for both to run before: others start, too.
			spec: `
activeDeadlineSeconds: 60
terminationGracePeriodSeconds: 5
initContainers: [{name: side, restartPolicy: Always}]
containers: [{name: main, image: "edgecore.local/demo:1", command: [sh, -c, "` + deaf + `"]}]
`,
			check: func(p *pod) {
				p.running()
				p.status("it is not ready before it has ended", func(s *v1.PodStatus) error {
					for _, kind := range []v1.PodConditionType{v1.PodReady, v1.ContainersReady} {
						if c := condition(s, kind); s.Phase != v1.PodRunning || c == nil ||
							c.Status != v1.ConditionFalse || c.Reason != "PodFailed" {
							return fmt.Errorf("%s, %+v", s.Phase, c)
						}
					}
					return nil
				})
				s := p.phase(v1.PodFailed).Status
				if s.Reason != "DeadlineExceeded" ||
					s.Message != "Pod was active on the node longer than the specified deadline" {
					p.Errorf("reason %q, message %q, want DeadlineExceeded and the usual message", s.Reason, s.Message)
				}
				p.status("its containers have ended", func(s *v1.PodStatus) error { return ended(s, "side", "main") })
				p.event("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
			},
		},
		{
			name: "active-deadline-waiting",
			spec: `
activeDeadlineSeconds: 3
containers: [{name: main, image: "edgecore.local/nowhere:1", imagePullPolicy: Never}]
`,
			check: func(p *pod) {
				if s := p.phase(v1.PodFailed).Status; s.Reason != "DeadlineExceeded" {
					p.Errorf("reason = %q, want DeadlineExceeded", s.Reason)
				}
			},
		},
		{
			name: "stop-signal",
			spec: `
os: {name: linux}
terminationGracePeriodSeconds: 20
containers:
- {name: own, image: "edgecore.local/demo:1", lifecycle: {stopSignal: SIGUSR1}, command: [sh, -c, "trap 'echo usr1 >/dev/termination-log; exit 0' USR1; trap 'echo term >/dev/termination-log; exit 0' TERM; while true; do sleep 1 & wait $!; done"]}
- {name: usual, image: "edgecore.local/demo:1", command: [sh, -c, "trap 'echo usr1 >/dev/termination-log; exit 0' USR1; trap 'echo term >/dev/termination-log; exit 0' TERM; while true; do sleep 1 & wait $!; done"]}
`,
			check: func(p *pod) {
				s := p.running().Status
				if got := containerStatus(&s, "own").StopSignal; ptr.Deref(got, "nil") != v1.SIGUSR1 {
					p.Errorf("stop signal = %s, want %s", ptr.Deref(got, "nil"), v1.SIGUSR1)
				}
				last := p.end(nil)
				own, usual := containerStatus(last, "own").State.Terminated,
					containerStatus(last, "usual").State.Terminated
				if own.Message != "usr1\n" || usual.Message != "term\n" {
					p.Errorf("own ended with %+v, want the message usr1; usual with %+v, want term", own, usual)
				}
			},
		},
		{
			name: "stdin-tty",
			spec: `
containers:
- {name: none, image: "edgecore.local/demo:1", command: [sh, -c, "cat; echo closed; exec sleep 3600"]}
- {name: stdin, image: "edgecore.local/demo:1", stdin: true, command: [sh, -c, "cat; echo closed; exec sleep 3600"]}
- {name: once, image: "edgecore.local/demo:1", stdin: true, stdinOnce: true, command: [cat]}
- {name: tty, image: "edgecore.local/demo:1", stdin: true, tty: true, command: [sh, -c, "tty; test -t 1 && echo terminal; exec sleep 3600"]}
`,
			check: func(p *pod) {
				p.running()
				p.logged("none", "closed")
				p.logged("tty", "/dev/pts/0")
				p.logged("tty", "terminal")
				p.says("stdin", "tr '\\0' ' ' </proc/1/cmdline | cut -c 1-10", "sh -c cat;")
				p.running()
			},
		},
		{
			name: "share-process-namespace",
			spec: `
shareProcessNamespace: true
containers: [{name: a, image: "edgecore.local/demo:1", command: [sleep, "7777"]}, {name: b}]
`,
			check: func(p *pod) {
				p.running()
				if out := p.exec("b",
					`for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$f; echo; done`); !strings.Contains(out,
					"/pause") || !strings.Contains(out, "sleep 7777") {
					p.Errorf("processes = %q, want /pause and \"sleep 7777\" among them", out)
				}
				p.says("b", "readlink /proc/self/ns/pid | cut -c 1-4; test $$ != 1 && echo shared", "pid:\nshared")
			},
		},
	}
}
