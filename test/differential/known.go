package differential

// Known are the differences between the kubelet and edgecore that are there on purpose. docs/differences.md gives the reason of each.
func Known() []Allowed {
	return append(knownAPI(), []Allowed{
		{Path: `pod\.status\.resources(\.(limits|requests)(\.(cpu|memory))?)?`, Row: "`status.resources` of a running pod"},
		{Path: `events/.*"DeadlineExceeded".*`, Left: "several times", Right: "once", Row: "the event `DeadlineExceeded`"},
		{
			// Their status is compared as it is.
			Path:    `pod\.status\.conditions\[(Ready|ContainersReady)\]\.(reason|message)`,
			Skipped: true,
			Row:     "states that last less than 200 ms",
		},
		{
			Case:    "restart-agent-crash-loop",
			Path:    `pod\.status\.containerStatuses\[main\]\.state\.waiting\.(message|reason)`,
			Skipped: true,
			Row:     "when a container waits with `CrashLoopBackOff`",
		},
		{
			Case:  "restart-(runtime|agent)-.*",
			Path:  `events/"Warning","Unhealthy",.* probe errored and resulted in unknown state: rpc error: code = Canceled desc = context canceled"`,
			Left:  "there",
			Right: "^$",
			Row:   "event `Unhealthy` of a probe that ends with the runtime",
		},
		{
			Case: "restart-.*",
			Path: `events/"Warning","FailedMount","kubelet","","MountVolume\.SetUp failed for volume \\"[^"]*\\" : object .* not registered"`,
			Row:  "event `FailedMount` of a pod that ended while the agent was down",
			Left: "there", Right: "^$",
		},
		{
			Case:  "environment-files",
			Path:  `pod\.status\.containerStatuses\[.*\]\.state\.waiting\.message`,
			Left:  `.*(couldn't parse env file|environment variable key).*`,
			Right: `.*(environment variables of file|environment variable key).*`,
			Row:   "message of a fileKeyRef that cannot be read",
		},
		{
			Case:  "resources-of-the-pod",
			Path:  `pod\.status\.containerStatuses\[own\]\.resources\.(limits|requests)\.cpu`,
			Left:  `500m -> \(absent\)`,
			Right: "^$",
			Row:   "`resources` of a container without a cpu limit in a pod that has one",
		},
		{
			Case: "resources-resized",
			Path: `cri/UpdatePodSandboxResources\.resources\.cpuShares`,
			Left: "102", Right: "153",
			Row: "UpdatePodSandboxResources at a resize",
		},
		{
			Case:    "resources-resized",
			Path:    `pod\.status\.conditions`,
			Skipped: true,
			Row:     "states that last less than 200 ms",
		},
		{
			Case:  "resources-resized",
			Path:  `pod\.status\.conditions\[PodResizeInProgress\]\.(lastProbeTime|lastTransitionTime|observedGeneration|status|type)`,
			Left:  `(<time>|2|True|PodResizeInProgress) -> \(absent\)`,
			Right: "^$",
			Row:   "states that last less than 200 ms",
		},
		{Case: "claim-hostpath", Path: `cri/CreateContainer/main\.config\.mounts\[/v\]\.readonly`, Row: "one claim in two volumes of a pod, one of them read-only"},
	}...)
}
