package conformance

import (
	"fmt"
	"net"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// statusRows are about what is reported of a pod.
func statusRows() []row {
	return []row{
		{
			name: "status-running",
			spec: `
initContainers: [{name: first, command: ["true"]}]
containers: [{name: main}]
`,
			check: func(p *pod) {
				p.running()
				var got *v1.Pod
				p.until("the newest spec is seen", func() error { // cloudcore may have added tolerations
					if got = p.get(); got.Status.ObservedGeneration != got.Generation {
						return fmt.Errorf("observed generation %d of %d", got.Status.ObservedGeneration, got.Generation)
					}
					return nil
				})
				s := &got.Status
				for _, kind := range []v1.PodConditionType{
					v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady, v1.PodScheduled,
				} {
					c := condition(s, kind)
					if c == nil || c.Status != v1.ConditionTrue || c.Reason != "" || c.Message != "" ||
						c.LastTransitionTime.IsZero() || c.ObservedGeneration != got.Generation {
						p.Errorf("%s = %+v, want True without reason or message, with a time, generation %d",
							kind, c, got.Generation)
					}
				}
				if net.ParseIP(s.PodIP) == nil || net.ParseIP(s.HostIP) == nil || len(s.PodIPs) == 0 ||
					s.PodIPs[0].IP != s.PodIP || len(s.HostIPs) == 0 || s.HostIPs[0].IP != s.HostIP {
					p.Errorf("podIP %s, podIPs %v, hostIP %s, hostIPs %v, want each list to begin with the address",
						s.PodIP, s.PodIPs, s.HostIP, s.HostIPs)
				}
				if s.StartTime.IsZero() || s.QOSClass != v1.PodQOSBestEffort ||
					s.ObservedGeneration != got.Generation || s.Reason != "" || s.Message != "" {
					p.Errorf("status = %+v, want a start time, BestEffort, generation %d, no reason, no message", s,
						got.Generation)
				}
				if c := containerStatus(s, "first"); !c.Ready || c.State.Terminated == nil ||
					c.State.Terminated.Reason != "Completed" || c.State.Terminated.FinishedAt.IsZero() {
					p.Errorf("init container = %+v, want ready, Completed", c)
				}
				p.says("main", "hostname -i", s.PodIP)
			},
		},
		{
			name: "status-succeeded",
			spec: `
restartPolicy: Never
containers: [{name: main, command: ["true"]}]
`,
			check: func(p *pod) {
				s := &p.phase(v1.PodSucceeded).Status
				for kind, want := range map[v1.PodConditionType]v1.ConditionStatus{v1.PodInitialized: v1.ConditionTrue,
					v1.ContainersReady: v1.ConditionFalse, v1.PodReady: v1.ConditionFalse} {
					if c := condition(s, kind); c == nil || c.Status != want || c.Reason != "PodCompleted" {
						p.Errorf("condition %s = %+v, want %s PodCompleted", kind, c, want)
					}
				}
				if c := containerStatus(s, "main"); c.Ready || c.State.Terminated.Reason != "Completed" {
					p.Errorf("container = %+v, want Completed and not ready", c)
				}
			},
		},
		{
			name: "status-failed",
			spec: `
restartPolicy: Never
containers: [{name: main, command: [sh, -c, "exit 3"]}]
`,
			check: func(p *pod) {
				s := &p.phase(v1.PodFailed).Status
				if end := containerStatus(s, "main").State.Terminated; end == nil || end.ExitCode != 3 ||
					end.Reason != "Error" {
					p.Errorf("container ended with %+v, want Error, exit code 3", end)
				}
			},
		},
		{
			name: "status-oom-killed",
			spec: `containers: [{name: main, command: [tail, /dev/zero], resources: {limits: {memory: 16Mi}}}]`,
			check: func(p *pod) {
				// The runtime may hear of the exit first, and of the reason never: one of several ends is enough.
				p.status("it was killed for its memory", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "main"); c == nil ||
						!outOfMemory(c.State.Terminated) && !outOfMemory(c.LastTerminationState.Terminated) {
						return fmt.Errorf("%+v", c)
					}
					return nil
				})
			},
		},
		{
			name: "status-restarts",
			spec: `
restartPolicy: OnFailure
containers: [{name: main, command: [sh, -c, "n=$(cat /dev/termination-log); echo -n gone >/dev/termination-log; test -e /tmp/x && exit 0; exit 5"]}]
`,
			check: func(p *pod) {
				got := p.waits("main", "CrashLoopBackOff", "restarting failed container=main pod=status-restarts_")
				c := containerStatus(&got.Status, "main")
				if end := c.LastTerminationState.Terminated; end == nil || end.ExitCode != 5 || end.Reason != "Error" ||
					end.Message != "gone" || !strings.HasPrefix(end.ContainerID, "containerd://") {
					p.Errorf("last state = %+v, want exit code 5, Error, message \"gone\", ID containerd://...", end)
				}
				p.status("its restarts are counted", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "main"); c.RestartCount < 1 || c.LastTerminationState.Terminated == nil {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
			},
		},
	}
}

func outOfMemory(end *v1.ContainerStateTerminated) bool {
	return end != nil && end.ExitCode == 137 && end.Reason == "OOMKilled"
}
