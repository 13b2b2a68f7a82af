package differential

// Known are the differences between the kubelet and edgecore that are there on purpose. docs/differences.md gives the reason of each.
func Known() []Allowed {
	return []Allowed{
		{Path: `pod\.status\.resources(\.(limits|requests)(\.(cpu|memory))?)?`, Row: "`status.resources` of a running pod"},
		{Path: `events/.*"DeadlineExceeded".*`, Left: "several times", Right: "once", Row: "the event `DeadlineExceeded`"},
		{
			// Their status is compared as it is.
			Path:    `pod\.status\.conditions\[(Ready|ContainersReady)\]\.(reason|message)`,
			Skipped: true,
			Row:     "states that last less than 200 ms",
		},
		{Case: "claim-hostpath", Path: `cri/CreateContainer/main\.config\.mounts\[/v\]\.readonly`, Row: "one claim in two volumes of a pod, one of them read-only"},
		{Path: `api/.*/error`, Row: "texts of errors on the port of the kubelet's API"},
		{Path: `api/.*/header/X-Content-Type-Options`, Left: "", Right: "nosniff", Row: "`X-Content-Type-Options: nosniff`"},
		{Path: `api/.*/containerLogs/.*/type`, Right: "text/plain", Row: "`Content-Type` of container logs"},
		{
			Path:  `api/(nobody)? GET /none/status`,
			Left:  "404 Not Found",
			Right: "401 Unauthorized|403 Forbidden",
			Row:   "unknown paths of that port, without credentials or rights",
		},
	}
}
