package differential

import "strings"

// nothing matches a path without a value.
const nothing = `()`

// api is how the paths of requests begin: those to the port of the kubelet's API, and those to the read-only one.
const (
	api    = `api/(admin|nobody|read-only)? `
	apiGet = `api/(admin|read-only) GET `
)

// knownAPI are the differences of the ports' answers and of the Node.
func knownAPI() []Allowed {
	var list []Allowed
	for _, more := range [][]Allowed{knownErrors(), knownMethods(), knownPages(), knownMetrics(), knownSummary(),
		knownNode()} {
		list = append(list, more...)
	}
	return list
}

// anyOf is a regular expression for one of several names, which are plain words separated by spaces.
func anyOf(words string) string { return "(" + strings.Join(strings.Fields(words), "|") + ")" }

// knownErrors are the texts that are longer than the kubelet's. What the kubelet says comes first, then ours.
func knownErrors() []Allowed {
	const row = "texts of errors on the port of the kubelet's API"
	var list []Allowed
	for _, pair := range [][2]string{
		{`Unauthorized`, `Unauthorized: show a client certificate or a token of the cluster\n`},
		{
			`404 page not found\n`,
			`Unauthorized: show .*|Forbidden \(user=nobody, verb=get, resource=nodes, subresource=proxy\)\n`,
		},
		{`404: Page Not Found`, `404 page not found\n`},
		{`405: Method Not Allowed`, `method [A-Z]+ is not one of [A-Z, ]+\n`},
		{
			`Forbidden \(user=nobody, verb=get, .*, subresource\(s\)=\[.*\]\)\n`,
			`Forbidden \(user=nobody, verb=(get|create), .*, subresource=.*\)\n`,
		},
		{`pod does not exist|pod "none" does not exist`, `pod "none" does not exist in namespace "none" on this node`},
		{`Upgrade request required\n`, `Upgrade request required: this path streams over SPDY or WebSocket`},
		{`you must specify at least 1 of stdin, stdout, stderr`, `no command: ask with .*`},
		{
			`rpc error: .*exec: \\"\\": executable file not found.*|rpc error: .*`,
			`no command, or one that is too long: .*`,
		},
		{
			`\{"message": "(Invalid request|Unable to decode query)\."\}`,
			`(limitBytes|sinceSeconds|sinceTime|tailLines|stream) ".*": want .*|at most one of .*|tailLines and stream=Stdout exclude each other`,
		},
		{
			`container "none" not found in pod "api"`,
			`container "none" not found in pod "api"; it has main, ended, again`,
		},
		{`container none does not exist`, `container none of pod <node>/api does not run on this node: .*\n`},
	} {
		list = append(list, Allowed{Case: "api", Path: api + `.*/error`, Left: pair[0], Right: pair[1], Row: row})
	}
	return append(list, Allowed{
		Path:  api + `(GET|POST) /(exec|attach|run)/@POD@/(ended|none).*/error`,
		Left:  `container (not found \("(ended|none)"\)|(ended|none) not found in pod api_<node>)`,
		Right: `container not found \("(ended|none)"\): .+`,
		Row:   "exec, attach and port-forward where nothing runs",
	})
}

// knownMethods are the codes and headers of requests with another method, or without what a path needs.
func knownMethods() []Allowed {
	const row = "methods on the port of the kubelet's API"
	return []Allowed{
		{
			Path:  `api/admin HEAD (/pods|/containerLogs/@POD@/main)/status`,
			Left:  "405 Method Not Allowed",
			Right: "200 OK",
			Row:   row,
		},
		{
			Path:  `api/admin HEAD (/pods|/containerLogs/@POD@/main)/(header/Allow|error)`,
			Left:  `GET|`,
			Right: nothing,
			Row:   row,
		},
		{
			Path:  `api/admin HEAD (/pods|/containerLogs/@POD@/main)/(body|type)`,
			Left:  `()|text/plain`,
			Right: `()|application/json|text/plain`,
			Row:   row,
		},
		{Path: `api/admin (DELETE|POST) /.*/header/Allow`, Left: "GET|", Right: "GET, HEAD", Row: row},
		{
			Path:  `api/admin POST /(configz|healthz|metrics|stats/summary)/status`,
			Left:  "200 OK",
			Right: "405 Method Not Allowed",
			Row:   row,
		},
		{
			Path:  `api/admin POST /((configz|stats/summary)/field\..+|metrics/(series|type)/.+)`,
			Left:  `.+`,
			Right: nothing,
			Row:   row,
		},
		{
			Path:  `api/admin POST /(configz|stats/summary)/type`,
			Left:  "application/json",
			Right: "text/plain",
			Row:   row,
		},
		{Path: `api/admin POST /healthz/body`, Left: "ok", Right: nothing, Row: row},
		{
			Path:  `api/admin POST /(configz|healthz|metrics|stats/summary)/error`,
			Left:  nothing,
			Right: `method POST is not one of GET, HEAD\n`,
			Row:   row,
		},
		{
			Path:  `api/admin DELETE /metrics/slis/status`,
			Left:  "200 OK",
			Right: "405 Method Not Allowed",
			Row:   "`DELETE /metrics/slis`",
		},
		{
			Path:  `api/admin DELETE /metrics/slis/error`,
			Left:  nothing,
			Right: `method DELETE is not one of GET, HEAD\n`,
			Row:   "`DELETE /metrics/slis`",
		},
		{
			Path:  `api/admin DELETE /metrics/slis/series/metrics`,
			Left:  "reset",
			Right: nothing,
			Row:   "`DELETE /metrics/slis`",
		},
		{
			Path:  `api/admin GET /debug/flags/v/status`,
			Left:  "406 Not Acceptable",
			Right: "405 Method Not Allowed",
			Row:   row,
		},
		{
			Path:  `api/admin GET /debug/flags/v/(header/Allow|error)`,
			Left:  `()|unsupported http method\n`,
			Right: `PUT|method GET is not one of PUT\n`,
			Row:   row,
		},
		{
			Path:  `api/admin (GET|POST) /(exec|attach|portForward)/@POD@.*/status`,
			Left:  "500 Internal Server Error",
			Right: "400 Bad Request",
			Row:   "requests to exec, attach, port-forward and run that cannot be understood",
		},
		{
			Path: `api/admin POST /run/@POD@/main/status`, Left: "500 Internal Server Error", Right: "400 Bad Request",
			Row: "requests to exec, attach, port-forward and run that cannot be understood",
		},
		{
			Path: `api/(nobody)? GET /none/status`, Left: "404 Not Found", Right: "401 Unauthorized|403 Forbidden",
			Row: "unknown paths of that port, without credentials or rights",
		},
	}
}

// knownPages are the answers that have another form, or that only one of both gives.
func knownPages() []Allowed {
	const (
		needRights = `api/read-only GET /(attach|containerLogs|debug|exec|logs|portForward|run|runningpods)/.*`

		redirects = "paths without their last slash"
		readable  = "paths of the read-only port that need rights"
		page      = "`/` of the read-only port"
		streams   = "`stream=Stdout` and `stream=Stderr` of logs"
		zPages    = "`/statusz`, `/flagz`"
		configz   = "fields of `/configz`"
		pods      = "`/pods`"
	)
	slashless := anyOf("/stats /checkpoint /containerLogs /logs /runningpods")
	list := []Allowed{
		{
			Path:  api + `.*/header/X-Content-Type-Options`,
			Left:  nothing,
			Right: "nosniff",
			Row:   "`X-Content-Type-Options: nosniff`",
		},
		{
			Path:  `api/admin GET /containerLogs/@POD@/.*/type`,
			Left:  nothing,
			Right: "text/plain",
			Row:   "`Content-Type` of container logs",
		},
		{
			Path:  `api/admin POST /run/@POD@/main\?cmd=echo%20hi/type`,
			Left:  "application/json",
			Right: "text/plain",
			Row:   "`Content-Type` of container logs",
		},
		{
			Path:  apiGet + slashless + `/status`,
			Left:  "307 Temporary Redirect",
			Right: "404 Not Found",
			Row:   redirects,
		},
		{
			Path:  apiGet + slashless + `/type`,
			Left:  "text/html",
			Right: "text/plain",
			Row:   redirects,
		},
		{
			Path:  apiGet + slashless + `/header/Location`,
			Left:  "/[A-Za-z]+/",
			Right: nothing,
			Row:   redirects,
		},
		{
			Path:  apiGet + slashless + `/error`,
			Left:  nothing,
			Right: `404 page not found\n`,
			Row:   redirects,
		},
		{
			Path:  needRights + `/status`,
			Left:  "405 Method Not Allowed",
			Right: "404 Not Found",
			Row:   readable,
		},
		{
			Path:  needRights + `/error`,
			Left:  "Debug endpoints are disabled.*",
			Right: `404 page not found\n`,
			Row:   readable,
		},
		{Path: `api/read-only GET //status`, Left: "404 Not Found", Right: "200 OK", Row: page},
		{
			Path: `api/read-only GET //(type|body|error|header/.*)`,
			Left: `()|text/plain|404 page not found\n|nosniff`,
			Row:  page,
		},
		{
			Path:  `api/admin GET /containerLogs/@POD@/main\?stream=Std(out|err)/status`,
			Left:  "400 Bad Request",
			Right: "200 OK",
			Row:   streams,
		},
		{
			Path:  `api/admin GET /containerLogs/@POD@/main\?stream=Std(out|err)/body`,
			Left:  nothing,
			Right: `out\nlast\n|err\n`,
			Row:   streams,
		},
		{
			Path:  `api/admin GET /containerLogs/@POD@/main\?stream=Std(out|err)/error`,
			Left:  `unable to return the given log stream: .*`,
			Right: nothing,
			Row:   streams,
		},
		{Path: `api/admin GET /(statusz|flagz)/status`, Left: "200 OK", Right: "404 Not Found", Row: zPages},
		{Path: `api/admin GET /(statusz|flagz)/error`, Left: nothing, Right: `404 page not found\n`, Row: zPages},
		{
			Path: `api/admin GET /configz/field\.kubeletconfig\.` +
				anyOf(`apiVersion kind authentication\.x509\.clientCAFile crashLoopBackOff\.maxContainerRestartPeriod
				enableSystemLogQuery healthzBindAddress healthzPort imagePullCredentialsVerificationPolicy kubeAPIBurst kubeAPIQPS memoryReservationPolicy
				memoryThrottlingFactor mergeDefaultEvictionSettings tlsCertFile tlsPrivateKeyFile`),
			Right: nothing, Row: configz,
		},
		{
			Path:  `api/admin GET /configz/field\.kubeletconfig\.(authentication\.x509|crashLoopBackOff)`,
			Left:  nothing,
			Right: `\{\}`,
			Row:   configz,
		},
		{
			// Those that the harness sets, to another value on each side.
			Path: `api/admin GET /configz/field\.kubeletconfig\.` +
				anyOf(`port readOnlyPort makeIPTablesUtilChains logging\.verbosity`),
			Left:  `.+`,
			Right: `.+`,
			Row:   configz,
		},
		{Path: apiGet + `/pods/?/field\.items\[\]\.metadata\.managedFields.*`, Left: there, Right: nothing, Row: pods},
		{Path: apiGet + `/pods/?/field\.items\[\]\.(apiVersion|kind)`, Left: nothing, Right: there, Row: pods},
		{
			Path: apiGet +
				`/(pods|runningpods)/?/field\.items\[\]\.status\.resources(\.(limits|requests)(\.(cpu|memory))?)?`,
			Row: "`status.resources` of a running pod",
		},
	}
	for field, values := range map[string][2]string{
		"configMapAndSecretChangeDetectionStrategy": {"Watch", "Get"},
		"contentType":               {`application/vnd\.kubernetes\.protobuf`, "application/json"},
		"httpCheckFrequency":        {"20s", "0s"},
		"nodeStatusMaxImages":       {"50", "0"},
		"nodeStatusReportFrequency": {"5s", "5m0s"},
	} {
		list = append(list, Allowed{
			Path:  `api/admin GET /configz/field\.kubeletconfig\.` + field,
			Left:  values[0],
			Right: values[1],
			Row:   "defaults of the configuration",
		})
	}
	return list
}

// knownMetrics are the differences of the pages below /metrics.
func knownMetrics() []Allowed {
	const (
		head      = "headers and process start time of the pages below `/metrics`"
		agent     = "`/metrics`"
		unlimited = "amounts without a limit on cgroup v1"
		missing   = "series of `/metrics/cadvisor` that edgecore does not have"
		above     = "series of `/metrics/cadvisor` of cgroups above containers"
		sandbox   = "series of `/metrics/cadvisor` of sandboxes"
	)
	const pod = `\{container=,(failure_type=[a-z]+,|cpu=total,)?id=\*,image=,(interface=eth0,)?name=,namespace=<node>,pod=api.*\}`
	const labels = `container=,.*image=,.*name=,namespace=(<node>)?,pod=(api)?.*`
	lacking :=
		anyOf(`container_cpu_cfs_burst_periods_total container_cpu_cfs_burst_seconds_total container_cpu_load_average_10s container_cpu_load_d_average_10s
		container_file_descriptors container_fs_[a-z_]+ container_health_state container_sockets container_tasks_state container_ulimits_soft
		machine_cpu_books machine_cpu_drawers machine_cpu_physical_cores machine_cpu_sockets machine_nvm_avg_power_budget_watts machine_nvm_capacity`)
	return []Allowed{
		{
			Path:  api + `[A-Z]+ /metrics(/[a-z]+)?/header/Process-Start-Time-Unix`,
			Left:  `about 1.*`,
			Right: nothing,
			Row:   head,
		},
		{Path: api + `[A-Z]+ /metrics(/[a-z]+)?/header/Vary`, Left: nothing, Right: "Accept", Row: head},
		{
			Path:  apiGet + `/metrics/(probes|slis)/(type|series)/process_start_time_seconds`,
			Right: nothing,
			Row:   head,
		},
		{
			Path: apiGet + `/metrics/(type|series)/kubelet_` +
				anyOf(`active_pods cgroup_[a-z_]+ container_log_filesystem_used_bytes containers_per_pod[a-z_]* cpu_manager_[a-z_]+
			cri_losing_support desired_pods evented_pleg_[a-z_]+ first_network_pod_start_sli_duration_seconds graceful_shutdown_[a-z_]+ http_[a-z_]+ image_[a-z_]+
			imagemanager_[a-z_]+ lifecycle_handler_[a-z_]+ managed_ephemeral_containers memory_manager_[a-z_]+ metrics_provider mirror_pods node_startup_[a-z_]+
			orphan[a-z_]+ pleg_[a-z_]+ pod_in_progress_resizes pod_resize_[a-z_]+ pod_start_[a-z_]+ pod_status_[a-z_]+ pod_watch_[a-z_]+ pod_worker_[a-z_]+ restarted_pods_total
			run_podsandbox_[a-z_]+ runtime_operations_[a-z_]+ sleep_action_[a-z_]+ started_[a-z_]+ terminated_containers_total topology_manager_[a-z_]+
			volume_metric_[a-z_]+ working_pods`), Right: nothing, Row: agent,
		},
		{
			Path:  apiGet + `/metrics/resource/series/container_swap_limit_bytes\{.*\}`,
			Left:  `about (0|[0-9.e+]+)`,
			Right: `()|about 0`,
			Row:   unlimited,
		},
		{
			Path:  apiGet + `/metrics/cadvisor/(type|series)/` + lacking + `(\{.*\})?`,
			Left:  `.+`,
			Right: nothing,
			Row:   missing,
		},
		{
			Path: apiGet +
				`/metrics/cadvisor/series/container_[a-z_]+\{container=,.*id=\*,image=\*,.*name=\*,namespace=<node>,pod=api.*\}`,
			Right: nothing, Row: sandbox,
		},
		{Path: apiGet + `/metrics/cadvisor/series/container_network_[a-z_]+` + pod, Left: nothing, Row: sandbox},
		{
			Path: apiGet + `/metrics/cadvisor/series/` +
				anyOf(`container_cpu_system_seconds_total container_cpu_user_seconds_total container_last_seen container_memory_failcnt
				container_memory_failures_total container_memory_kernel_usage container_memory_mapped_file container_memory_max_usage_bytes
				container_memory_total_active_file_bytes container_memory_total_inactive_file_bytes container_oom_events_total container_processes
				container_spec_[a-z_]+ container_start_time_seconds container_threads_max`) + `\{` + labels + `\}`,
			Left:  `.+`,
			Right: nothing,
			Row:   above,
		},
		{
			Path: apiGet +
				`/metrics/cadvisor/series/container_memory_failures_total\{container=,failure_type=pg(maj)?fault,id=/,.*scope=hierarchy\}`,
			Row: "page faults of the node on cgroup v1",
		},
	}
}

// knownSummary are the differences of /stats/summary.
func knownSummary() []Allowed {
	const summary = apiGet + `/stats/summary(\?only_cpu_and_memory=true|/)?/field`
	return []Allowed{
		{
			Path:  summary + `\.node\.memory\.(pageFaults|majorPageFaults)`,
			Left:  `about .*`,
			Right: `about .*`,
			Row:   "page faults of the node on cgroup v1",
		},
		{
			Path:  summary + `\.node\.systemContainers\[kubelet\]\.(name|startTime|(cpu|memory)\.[a-zA-Z]+)`,
			Left:  nothing,
			Right: `kubelet|<time>|a rate|about .+`,
			Row:   "system container `kubelet` of the summary",
		},
		{
			Path: summary +
				`\.(node\.systemContainers\[pods\]|pods\[\]|pods\[\]\.containers\[\w+\])\.(io\.time|(cpu|memory|io)\.psi\.(some|full)\.(avg10|avg60|avg300|total))`,
			Right: nothing,
			Left:  `about 0|<time>`,
			Row:   "pressure (PSI) on cgroup v1",
		},
		{
			Path:  summary + `\.node\.(cpu|memory|io)\.psi\.(some|full)\.(avg10|avg60|avg300|total)`,
			Left:  `about 0`,
			Right: `about .*`,
			Row:   "pressure (PSI) on cgroup v1",
		},
		{
			Path: summary + `\.pods\[\]\.containers\[\w+\]\.(memory\.availableBytes|swap\.swapAvailableBytes)`,
			Left: `about (0|[0-9.e+]+)`, Right: `()|about 0`, Row: "amounts without a limit on cgroup v1",
		},
	}
}

// knownNode are the differences of the Node and of what belongs to it.
func knownNode() []Allowed {
	const (
		own      = "annotations and labels of the Node"
		handlers = "`status.runtimeHandlers` and `status.features` of the Node with containerd before 1.7"
		declared = "`status.declaredFeatures` of the Node"
	)
	return []Allowed{
		{Path: `node\.metadata\.annotations\.(cloudcore|edgecore\.io/instance)`, Left: nothing, Row: own},
		{
			Path: `node\.metadata\.labels\.(edgecore\.io\.node-restriction\.kubernetes\.io/holder|node-role\.kubernetes\.io/(agent|edge))`,
			Left: nothing,
			Row:  own,
		},
		{
			Path:  `node\.metadata\.annotations\.volumes\.kubernetes\.io/controller-managed-attach-detach`,
			Left:  "true",
			Right: nothing,
			Row:   "CSINode",
		},
		{Path: `csinode`, Left: there, Right: nothing, Row: "CSINode"},
		{
			Path:  `node/events/Node(Not)?Schedulable`,
			Left:  there,
			Right: nothing,
			Row:   "events NodeSchedulable and NodeNotSchedulable",
		},
		{Path: `node\.status\.declaredFeatures`, Left: `\[0 1 2 3\]`, Right: `\[0 1 2\]`, Row: declared},
		{
			Path:  `node\.status\.declaredFeatures\[[0-3]\]`,
			Left:  `ExtendWebSocketsToKubelet|InPlacePodLevelResourcesVerticalScaling|InPlacePodVerticalScalingInitContainers|RestartAllContainersOnContainerExits`,
			Right: `InPlacePodLevelResourcesVerticalScaling|InPlacePodVerticalScalingInitContainers|RestartAllContainersOnContainerExits|()`,
			Row:   declared,
		},
		{Path: `node\.status\.features\.supplementalGroupsPolicy`, Left: nothing, Right: "false", Row: handlers},
		{
			Path:  `node\.status\.runtimeHandlers(\[(runc|second)?\]\.(features\.(recursiveReadOnlyMounts|userNamespaces)|name))?`,
			Left:  nothing,
			Right: `\[ runc second\]|false|runc|second|`,
			Row:   handlers,
		},
		{
			Path:  `node\.status\.nodeInfo\.kubeletVersion`,
			Left:  `v1\.\d+\.\d+`,
			Right: `v1\.\d+\.\d+-edgecore-v.*`,
			Row:   "`kubeletVersion` of the Node",
		},
		{
			Path:  `node\.status\.daemonEndpoints\.kubeletEndpoint\.Port`,
			Left:  "0",
			Right: `\d{5}`,
			Row:   "address and kubelet port of the Node",
		},
	}
}
