package conformance

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// deaf is a script that has to be killed.
const deaf = "trap '' TERM; while true; do sleep 1 & wait $!; done"

// deleteWithin deletes the pod with a grace period and waits until it is gone.
func (p *pod) deleteWithin(seconds int64) {
	p.Helper()
	env.Must(p, p.node.api.CoreV1().Pods(p.node.name).Delete(p.Context(), p.name,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(seconds)}))
	p.delete()
}

// terminationRows are about how containers end and what is reported of it.
func terminationRows() []row {
	return []row{
		{
			name: "termination-grace",
			spec: `
terminationGracePeriodSeconds: 3
containers: [{name: deaf, image: "edgecore.local/demo:1", command: [sh, -c, "trap 'sleep 1; echo told >/dev/termination-log' TERM; while true; do sleep 1 & wait $!; done"]}, {name: good}]
`,
			check: func(p *pod) {
				p.running()
				s := p.end(nil)
				d, good := containerStatus(s, "deaf").State.Terminated, containerStatus(s, "good").State.Terminated
				if d.ExitCode != 137 || d.Reason != "Error" || d.Message != "told\n" {
					p.Errorf("deaf ended with %+v, want 137, Error, told", d)
				}
				if !d.FinishedAt.After(good.FinishedAt.Time) {
					p.Errorf("deaf ended at %v, want it after good, which ended at %v", d.FinishedAt, good.FinishedAt)
				}
				if good.ExitCode != 0 || good.Reason != "Completed" {
					p.Errorf("good ended with %+v, want 0, Completed", good)
				}
				if s.Phase != v1.PodFailed {
					p.Errorf("phase = %s, want Failed", s.Phase)
				}
			},
		},
		{
			name: "termination-grace-zero",
			spec: `
terminationGracePeriodSeconds: 4
containers: [{name: deaf, image: "edgecore.local/demo:1", command: [sh, -c, "` + deaf +
				`"], lifecycle: {preStop: {exec: {command: [sh, -c, "exit 4"]}}}}]
`,
			check: func(p *pod) {
				p.running()
				p.deleteWithin(0)
				p.event("FailedPreStopHook", "PreStopHook failed") // a forced deletion skips no hook
				p.until("its container has ended", func() error {
					if _, err := p.container("deaf"); err == nil {
						return fmt.Errorf("it runs")
					}
					return nil
				})
			},
		},
		{
			name: "termination-grace-shorter",
			spec: `
terminationGracePeriodSeconds: 86400
containers: [{name: deaf, image: "edgecore.local/demo:1", command: [sh, -c, "` + deaf + `"]}]
`,
			check: func(p *pod) {
				p.running()
				env.Must(p, p.node.api.CoreV1().Pods(p.node.name).Delete(p.Context(), p.name, metav1.DeleteOptions{}))
				p.event("Killing", "Stopping container deaf")
				p.deleteWithin(2)
			},
		},
		{
			name: "termination-grace-of-probe",
			spec: `
terminationGracePeriodSeconds: 86400
containers:
- {name: live, image: "edgecore.local/demo:1", command: [sh, -c, "` + deaf +
				`"], livenessProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 2, terminationGracePeriodSeconds: 2}}
- {name: start, image: "edgecore.local/demo:1", command: [sh, -c, "` + deaf +
				`"], startupProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 2, terminationGracePeriodSeconds: 2}}
`,
			check: func(p *pod) {
				s := p.status("both were restarted", func(s *v1.PodStatus) error {
					for _, name := range []string{"live", "start"} {
						if err := restarted(s, name, 1); err != nil {
							return err
						}
					}
					return nil
				}).Status
				for _, name := range []string{"live", "start"} {
					if last := containerStatus(&s, name).LastTerminationState.Terminated; last == nil ||
						last.ExitCode != 137 {
						p.Errorf("the last end of %s = %+v, want exit code 137", name, last)
					}
				}
				p.deleteWithin(1)
			},
		},
		{
			name: "termination-message",
			spec: `
restartPolicy: Never
containers:
- {name: file, image: "edgecore.local/demo:1", command: [sh, -c, "echo said >/dev/termination-log; echo logged; exit 1"]}
- {name: own, image: "edgecore.local/demo:1", terminationMessagePath: /tmp/last, command: [sh, -c, "echo mine >/tmp/last"]}
- {name: log, image: "edgecore.local/demo:1", terminationMessagePolicy: FallbackToLogsOnError, command: [sh, -c, "for i in $(seq 100); do echo line $i; done; exit 1"]}
- {name: chars, image: "edgecore.local/demo:1", terminationMessagePolicy: FallbackToLogsOnError, command: [sh, -c, "for i in $(seq 60); do echo $i 012345678901234567890123456789012345678901234567890123456789; done; exit 1"]}
- {name: well, image: "edgecore.local/demo:1", terminationMessagePolicy: FallbackToLogsOnError, command: [sh, -c, "echo logged"]}
- {name: silent, image: "edgecore.local/demo:1", command: [sh, -c, "echo logged; exit 1"]}
`,
			check: func(p *pod) {
				s := p.phase(v1.PodFailed).Status
				message := func(name string) string { return containerStatus(&s, name).State.Terminated.Message }
				for name, want := range map[string]string{"file": "said\n", "own": "mine\n", "well": "", "silent": ""} {
					if got := message(name); got != want {
						p.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				if got := message("log"); !strings.HasPrefix(got, "line 21\n") ||
					!strings.HasSuffix(got, "line 100\n") {
					p.Errorf("the last 80 lines = %q, want lines 21 to 100", got)
				}
				if got := message("chars"); len(got) != 2048 || !strings.HasSuffix(got, "0123456789\n") {
					p.Errorf("%d bytes of the log, want 2048", len(got))
				}
			},
		},
		{
			name: "termination-message-size",
			spec: `
restartPolicy: Never
containers:
- {name: a, image: "edgecore.local/demo:1", command: [sh, -c, "head -c 9000 /dev/zero | tr '\\0' x >/dev/termination-log"]}
`,
			check: func(p *pod) {
				s := p.phase(v1.PodSucceeded).Status
				if got := s.ContainerStatuses[0].State.Terminated.Message; len(got) != 4096 {
					p.Errorf("%d bytes, want 4096", len(got))
				}
			},
		},
		{
			name: "termination-message-total",
			spec: `
restartPolicy: Never
containers:
- {name: a, image: "edgecore.local/demo:1", command: [sh, -c, "head -c 9000 /dev/zero | tr '\\0' x >/dev/termination-log"]}
- {name: b, image: "edgecore.local/demo:1", command: [sh, -c, "head -c 9000 /dev/zero | tr '\\0' x >/dev/termination-log"]}
- {name: c, image: "edgecore.local/demo:1", command: [sh, -c, "head -c 9000 /dev/zero | tr '\\0' x >/dev/termination-log"]}
- {name: d, image: "edgecore.local/demo:1", command: [sh, -c, "head -c 9000 /dev/zero | tr '\\0' x >/dev/termination-log"]}
`,
			check: func(p *pod) {
				total := 0
				s := p.phase(v1.PodSucceeded).Status
				for _, c := range s.ContainerStatuses {
					total += len(c.State.Terminated.Message)
				}
				if total == 0 || total > 12<<10 {
					p.Errorf("%d bytes in all, want 12 KiB at most", total)
				}
			},
		},
		{
			name: "exit-codes",
			spec: `
restartPolicy: Never
containers:
- {name: code, image: "edgecore.local/demo:1", command: [sh, -c, "exit 77"]}
- {name: signal, image: "edgecore.local/demo:1", command: [sh, -c, "sh -c 'kill -SEGV $$$$'; exit $?"]}
- {name: missing, image: "edgecore.local/demo:1", command: [/nowhere]}
`,
			check: func(p *pod) {
				s := p.phase(v1.PodFailed).Status
				p.event("Failed", "Error: ")
				for name, want := range map[string]v1.ContainerStateTerminated{
					"code": {ExitCode: 77, Reason: "Error"}, "signal": {ExitCode: 139, Reason: "Error"},
					"missing": {ExitCode: 128, Reason: "StartError"},
				} {
					c := containerStatus(&s, name).State.Terminated
					if c.ExitCode != want.ExitCode || c.Reason != want.Reason || c.ContainerID == "" ||
						c.FinishedAt.IsZero() {
						p.Errorf("%s: %+v, want %d %s", name, c, want.ExitCode, want.Reason)
					}
				}
				if c := containerStatus(&s, "missing").State.Terminated; !strings.Contains(c.Message, "/nowhere") {
					p.Errorf("message = %q, want one with /nowhere", c.Message)
				}
			},
		},
	}
}
