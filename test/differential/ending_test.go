package differential

import v1 "k8s.io/api/core/v1"

// endingCases are about how pods end, hooks, probes and images that cannot be had.
func endingCases() []Case {
	const deaf = `[sh, -c, "trap '' TERM; while true; do sleep 1 & wait $!; done"]`
	return []Case{
		{
			Name: "ending-deadline",
			Spec: `
activeDeadlineSeconds: 15
terminationGracePeriodSeconds: 4
containers: [{name: main, command: ` + deaf + `}]
`,
			Steps: []Step{Running(), Phase(v1.PodFailed)},
		},
		{
			Name: "ending-forced",
			Spec: `
terminationGracePeriodSeconds: 4
containers: [{name: main, command: ` + deaf + `, lifecycle: {preStop: {exec: {command: [sh, -c, "exit 4"]}}}}]
`,
			Steps: []Step{Running(), Delete(0), Stopped(), Event("FailedPreStopHook")},
			// The kubelet takes the pod's 4 s or, by chance, its least, 2 s.
			Ignore: []string{`cri/StopContainer/main\.timeout`},
		},
		{
			Name: "ending-shortest-grace",
			Spec: `
terminationGracePeriodSeconds: 60
containers: [{name: main, command: ` + deaf + `, lifecycle: {preStop: {sleep: {seconds: 50}}}}]
`,
			Steps: []Step{Running(), Delete(1), Gone()},
		},
		{
			Name:  "ending-post-start-fails",
			Spec:  `containers: [{name: main, lifecycle: {postStart: {exec: {command: [sh, -c, "exit 3"]}}}}]`,
			Steps: []Step{BackedOff("main", 1), Event("FailedPostStartHook")},
		},
		{
			Name: "ending-sidecar-restarts",
			Spec: `
initContainers: [{name: side, restartPolicy: Always, livenessProbe: {exec: {command: [sh, -c, "test -e /tmp/ok"]}, periodSeconds: 2, failureThreshold: 2}}]
containers: [{name: main}]
`,
			Steps: []Step{Event("Killing"), Restarted("side", 1), Exec("side", "touch /tmp/ok")},
		},
		{
			Name:  "ending-grpc-refused",
			Spec:  `containers: [{name: main, readinessProbe: {grpc: {port: 9}, periodSeconds: 3, timeoutSeconds: 2}}]`,
			Steps: []Step{Event("Unhealthy")},
		},
		{
			Name:  "ending-image-never",
			Spec:  `containers: [{name: main, image: "edgecore.local/nowhere:1", imagePullPolicy: Never}]`,
			Steps: []Step{Waiting("main", "ErrImageNeverPull"), Event("Failed")},
		},
		{
			Name:  "ending-image-invalid",
			Spec:  `containers: [{name: main, image: "Not An Image"}]`,
			Steps: []Step{Waiting("main", "InvalidImageName"), Event("Failed")},
		},
		{
			Name:  "ending-image-back-off",
			Spec:  `containers: [{name: main, image: "127.0.0.1:1/absent:1"}]`,
			Steps: []Step{Waiting("main", "ImagePullBackOff"), Event("BackOff")},
		},
		{
			Name:  "ending-preempted",
			Spec:  `containers: [{name: main, command: [sh, -c, "trap 'exit 3' TERM; while true; do sleep 1 & wait $!; done"], resources: {requests: {ephemeral-storage: 1Gi}}}]`,
			Alone: true,
			Steps: []Step{Running(), Preempt(), Event("Preempting"), Settled()},
		},
		{
			Name:  "ending-preempted-deaf",
			Spec:  `containers: [{name: main, command: ` + deaf + `, resources: {requests: {ephemeral-storage: 1Gi}}}]`,
			Alone: true,
			Steps: []Step{Running(), Preempt(), Event("Preempting"), Settled()},
		},
	}
}
