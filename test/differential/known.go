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
		{Case: "claim-hostpath", Path: `cri/CreateContainer/main\.config\.mounts\[/v\]\.readonly`, Row: "one claim in two volumes of a pod, one of them read-only"},
	}...)
}
