package differential

// Known are the differences between the kubelet and edgecore that are there on purpose. docs/differences.md gives the
// reason of each.
func Known() []Allowed {
	return append(knownAPI(), []Allowed{
		{
			// The first two are what a cgroup that is gone says, the last one on cgroup v1 the kernel's word for no
			// limit.
			Path:    `pod\.status\.resources(\.(limits|requests)\.[a-z0-9./-]+)?`,
			Without: `\(absent\)|\{\}|9007199254740988Ki`,
			Row:     "`status.resources` of a running pod",
		},
		{
			Case:  "node-evicted-completes",
			Path:  `pod\.status\.phase`,
			Left:  "Pending -> Running -> Succeeded",
			Right: "Pending -> Running -> Failed",
			Row:   "a pod that the node ends and whose containers exit with 0",
		},
		{
			Case:  "node-evicted-completes",
			Path:  `pod\.status\.conditions\[(Ready|ContainersReady|Initialized)\]\.reason`,
			Left:  `(.* -> )?PodCompleted`,
			Right: `(.* -> )?PodFailed|`,
			Row:   "a pod that the node ends and whose containers exit with 0",
		},
		{
			Case:  "node-evicted-completes",
			Path:  `pod\.status\.(message|reason)`,
			Left:  "^$",
			Right: `Evicted|Usage of EmptyDir volume "data" exceeds the limit "4Mi"\. `,
			Row:   "a pod that the node ends and whose containers exit with 0",
		},
		{
			Case: "node-evicted(-completes)?|ending-preempted(-deaf)?|emptydir-limit|ephemeral-storage-limit",
			Path: `logs/main/0\.log`,
			Left: nothing,
			Row:  "containers and logs of a pod that the node has ended",
		},
		{
			// The kubelet sometimes removes the container before it has reported its end.
			Case: "node-evicted(-completes)?|ending-preempted(-deaf)?|emptydir-limit|ephemeral-storage-limit",
			Path: `pod\.status\.containerStatuses\[main\]\.` +
				`(containerID|imageID|lastState|resources|restartCount|state)(\..*)?`,
			With: `pod\.status\.containerStatuses\[main\]\.(lastS|s)tate\.terminated\.reason ` +
				`(.* -> )?ContainerStatusUnknown`,
			Row: "containers and logs of a pod that the node has ended",
		},
		{
			Path:  `events/.*"DeadlineExceeded".*`,
			Left:  "several times",
			Right: "once",
			Row:   "the event `DeadlineExceeded`",
		},
		{
			Case:    "restart-agent-crash-loop",
			Path:    `pod\.status\.containerStatuses\[main\]\.state\.waiting\.(message|reason)`,
			Skipped: true,
			Row:     "when a container waits with `CrashLoopBackOff`",
		},
		{
			Path:  `events/"Warning","Unhealthy",.* probe errored and resulted in unknown state: rpc error: code = Canceled desc = context canceled"`,
			Left:  "there",
			Right: "^$",
			Row:   "event `Unhealthy` of a probe that ends with the runtime or the pod",
		},
		{
			Case:  "restart-.*",
			Path:  `events/"Warning","FailedMount","kubelet","","MountVolume\.SetUp failed for volume \\"[^"]*\\" : object .* not registered"`,
			Row:   "event `FailedMount` of a pod that ended while the agent was down",
			Left:  "there",
			Right: "^$",
		},
		{
			Case:  "environment-files|env-file",
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
			Row:   "`resources` of a container without a limit in a pod that has one",
		},
		{
			Case:  "random-.*",
			Path:  `pod\.status\.(c|initC)ontainerStatuses\[.*\]\.resources\.(limits|requests)\.(cpu|memory)`,
			Left:  `(2|512Mi) -> \(absent\)`, // limits of random pods as a whole
			Right: "^$",
			Row:   "`resources` of a container without a limit in a pod that has one",
		},
		{
			Path:  `pod\.status\.initContainerStatuses\[.*\]\.allocatedResourcesStatus\b.*`,
			Left:  "^$",
			Right: `\[[a-z0-9. /-]+\]|[a-z0-9.-]+/[a-z-]+|\[0\]|Healthy|<device>`,
			Row:   "`allocatedResourcesStatus` of init containers",
		},
		{
			Path:  `pod\.status\.containerStatuses\[.*\]\.allocatedResourcesStatus\b.*`,
			Left:  `(\[[a-z0-9. /-]+\]|[a-z0-9.-]+/[a-z-]+|\[0\]|Healthy|<device>) -> \(absent\)`,
			Right: `\[[a-z0-9. /-]+\]|[a-z0-9.-]+/[a-z-]+|\[0\]|Healthy|<device>`,
			Row:   "`allocatedResourcesStatus` of a pod that ends",
		},
		{
			Case: "resources-resized",
			Path: `cri/UpdatePodSandboxResources\.resources\.cpuShares`,
			Left: "102", Right: "153",
			Row: "UpdatePodSandboxResources at a resize",
		},
		{
			Case: "claim-hostpath",
			Path: `cri/CreateContainer/main\.config\.mounts\[/v\]\.readonly|inside/.*/main/mounts//v`,
			Row:  "one claim in two volumes of a pod, one of them read-only",
		},
		{
			Case: "env-file",
			Path: `(inside/[^/]*|cri/(CreateContainer|StartContainer|StopContainer|order)|logs)/main\b.*|` +
				`pod\.status\.containerStatuses\[main\]\.(containerID|resources|state\.running\.startedAt|state\.terminated\.containerID)`,
			Left: "^$",
			Row:  "a missing file of an `optional` fileKeyRef",
		},
		{
			Case:  "env-file",
			Path:  `events/"Normal","(Created|Killing|Started)","kubelet","spec\.containers\{main\}",.*`,
			Left:  "^$",
			Right: "once",
			Row:   "a missing file of an `optional` fileKeyRef",
		},
		{
			Case:  "env-file",
			Path:  `pod\.status\.containerStatuses\[main\]\.(ready|started|imageID)`,
			Left:  "false|",
			Right: "false -> true -> false|( -> )?sha256:.*",
			Row:   "a missing file of an `optional` fileKeyRef",
		},
		{
			Case:  "env-file",
			Path:  `pod\.status\.containerStatuses\[main\]\.state\.terminated\.(exitCode|finishedAt|message|reason|startedAt)`,
			Left:  "137|null|ContainerStatusUnknown|The container could not be located when the pod was terminated",
			Right: "0|<time>|Completed|",
			Row:   "a missing file of an `optional` fileKeyRef",
		},
		{
			Case:  "env-file",
			Path:  `pod\.status\.containerStatuses\[main\]\.state\.waiting\.(message|reason)`,
			Left:  ".*(couldn't parse env file|CreateContainerConfigError).*",
			Right: `|PodInitializing -> \(absent\)`,
			Row:   "a missing file of an `optional` fileKeyRef",
		},
		{
			Case:  "env-file",
			Path:  `events/"Warning","Failed","kubelet","spec\.containers\{missing\}","Error: environment variable key \\"Z\\" not found in file .*`,
			Left:  "there|",
			Right: "there|",
			Row:   "message of a fileKeyRef that cannot be read",
		},
		{
			Case:  "env-file",
			Path:  `events/"Warning","Failed","kubelet","spec\.containers\{[a-z]+\}","Error: couldn't parse env file"`,
			Left:  "there|several times|once",
			Right: "^$",
			Row:   "message of a fileKeyRef that cannot be read",
		},
		{
			Case:  "env-file",
			Path:  `events/"Warning","Failed","kubelet","spec\.containers\{[a-z]+\}","Error: environment variables of file .*`,
			Left:  "^$",
			Right: "there|several times|once",
			Row:   "message of a fileKeyRef that cannot be read",
		},
		{
			Case: "(csi|claim|ephemeral-claim)-.*|ephemeral-claim|volume-types-refused",
			Path: `events/"Warning","(FailedMount|FailedMapVolume)","kubelet","","(MountVolume|MapVolume|Unable to attach or mount).*`,
			Row:  "text of the events `FailedMount` and `FailedMapVolume`",
		},
		{
			Case:  "claim-type-refused|volume-types-refused|volume-unused",
			Path:  `events/"Normal","SuccessfulAttachVolume","attachdetach-controller",.*`,
			Left:  "once",
			Right: "^$",
			Row:   "volumes and PersistentVolumes of types that the node does not mount",
		},
		{
			Case: "host-users(-refused)?|proc-mount-unmasked",
			Path: `events/"Warning","FailedCreatePodSandBox","kubelet","",".*spec\.hostUsers.*`,
			Row:  "text of the event of a pod that the runtime cannot run",
		},
		{
			Case: "resource-claims",
			Path: `events/"Warning","(FailedPrepareDynamicResources|FailedCreatePodSandBox)".*`,
			Row: "pods with resourceClaims, and pods whose extended resources the scheduler allocated by a claim " +
				"(`status.extendedResourceClaimStatus`)",
		},
		{
			Case: "image-volume|image-volume-missing",
			Path: `(cri|events|inside|logs|pod|step)/.*|pod\..*`,
			Row:  "image volumes on a runtime that has none",
		},
		{
			Case: "stop-signal",
			Path: `cri/(CreateContainer/own\.config\.stopSignal|StopContainer/own\.timeout)|` +
				`pod\.status\.containerStatuses\[own\]\.(stopSignal|state\.terminated\.message)`,
			Row: "`stopSignal` on a runtime that knows none",
		},
		{
			Case:  "probe-liveness-never",
			Path:  `events/"Normal","Killing","kubelet","spec\.containers\{main\}","Container main failed liveness probe"`,
			Left:  "^$",
			Right: "once",
			Row:   "event `Killing` of a pod's last container whose probe has failed, with restartPolicy Never",
		},
		{
			Case:  "probe-liveness-never",
			Path:  `events/"Normal","Killing","kubelet","spec\.containers\{main\}","Stopping container main"`,
			Left:  "once",
			Right: "^$",
			Row:   "event `Killing` of a pod's last container whose probe has failed, with restartPolicy Never",
		},
		{
			Case:  "post-start",
			Path:  `events/"Warning","LifecycleHTTPFallback","kubelet","spec\.containers\{fallback\}",.*`,
			Left:  "^$",
			Right: "there",
			Row:   "event `LifecycleHTTPFallback` of a hook",
		},
		{
			Case:  "restart-rules|restart-on-failure|init-restart-rules|sidecar-restarts",
			Path:  `logs/((rule|twice)/0|side/1)\.log`,
			Left:  "^$",
			Right: "^$", // it is empty
			Row:   "log of the attempt before the last one of a container",
		},
		{
			Case:  "environment-pull-tokens",
			Path:  `cri/PullImage\.auth`,
			Left:  `\{\}`,
			Right: "^$",
			Row:   "`identitytoken` and `registrytoken` of a pull secret",
		},
		{
			Case:  "environment-pull-tokens",
			Path:  `cri/PullImage\.auth\.identityToken`,
			Left:  "^$",
			Right: "one",
			Row:   "`identitytoken` and `registrytoken` of a pull secret",
		},
		{
			Case:  "environment-pull-tokens",
			Path:  `cri/PullImage\.auth\.registryToken`,
			Left:  "^$",
			Right: "two",
			Row:   "`identitytoken` and `registrytoken` of a pull secret",
		},
		{
			Case:  "exit-codes",
			Path:  `pod\.status\.containerStatuses\[missing\]\.state\.terminated\.startedAt`,
			Left:  "<time>",
			Right: "null",
			Row:   "`startedAt` of a container that never started",
		},
		{
			Case:  "cgroup2",
			Path:  `(started|resized)/(cgroup/kubepods\.slice/cpuset\.cpus|unit/kubepods\.slice/AllowedCPUs)`,
			Left:  "0-1",
			Right: "^$",
			Row:   "`cpuset.cpus` of the cgroup of all pods",
		},
		{
			Case:  "cgroup2",
			Path:  `(started|resized)/cgroup/kubepods\.slice/(kubepods-(besteffort|burstable)\.slice/)?hugetlb\.[12][GM]B\.(rsvd\.)?max`,
			Left:  "4611686018427387904",
			Right: "max",
			Row:   "`hugetlb.*.max` of the cgroups of all pods and of the QoS classes",
		},
	}...)
}
