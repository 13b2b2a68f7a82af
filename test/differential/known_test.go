package differential

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// elsewhere returns the rows of docs/differences.md that no case of this package allows, each with the tests that show
// what edgecore does: a folder of the repository and the name of a test, and after a slash a text that stands in a file
// of that folder, such as the name of a case.
func elsewhere() map[string][]string {
	return map[string][]string{
		"message of a container that waits with `PostStartHookError`": {
			"edged/podstate/lifecycle.TestExec",
		},
		"a container of which the runtime no longer knows whether it runs, seen twice": {
			"edged/podstate/status.TestUnknownTwice",
		},
		"a termination message that is not UTF-8": {
			"edged/containers/runtime.TestTerminationMessage",
		},
		"a pod that was deleted by force while the agent was down": {
			"edged/containers/runtime.TestOrphanHasItsHook",
		},
		"readiness of a container while the agent restarts": {
			"edged/pods/prober.TestRestart",
		},
		"logs of the containers that `RestartAllContainers` removed": {
			"edged/containers/runtime.TestStartOver",
		},
		"progress of a pod that starts (`PodReadyToStartContainers`, its address), while its containers keep waiting " +
			"for the same reason": {
			"edged/podstate/statusreport.TestStartingPod",
		},
		"what happens to a pod that is being deleted before it has ended, but for a probe that fails while all " +
			"containers run": {
			"edged/podstate/statusreport.TestDeletedPod",
		},
		"states that last less than 200 ms": {
			"test/differential.TestBriefStates",
		},
		"a `subPath` through a link that leaves the volume and comes back by way of another link of the node": {
			"edged/storage/volume.TestLinksOutOfTheVolume",
		},
		"an attached CSI volume whose pod already had it before the agent or the device restarted": {
			"test/csi.TestAttachment",
		},
		"bytes of the pods, ConfigMaps and Secrets of a node": {
			"metamanager.TestRoomOfPods", "metamanager.TestRoomOfConfigMaps", "edged/pods/podadmit.TestTooLarge",
		},
		"Size of the configMap, secret, downwardAPI and projected volumes of a pod": {
			"edged/storage/volume.TestContentIsBounded",
		},
		"Credential provider plugins (`--image-credential-provider-config`)": {
			"pkg/apis/edgecore/v1alpha2.TestNotActedOn/imageCredentialProvider",
		},
		"credentials of the node in the folder in which the agent was started": {
			"edged/containers/images.TestHomeFolder",
		},
		"a pod that starts (`ContainerCreating`), until it runs or something keeps it from running": {
			"edged/podstate/statusreport.TestStartingPod",
			"test/differential.TestBriefStart",
		},
		"a pull secret that is no docker configuration": {
			"edged/containers/images.TestCredentials",
		},
		"no file at `resolvConf`": {
			"edged/containers/dns.TestResolve/no file on the node",
			"edged/containers/dns.TestResolveErrors/link to nothing yet",
		},
		"lines of `resolvConf` that make no sense": {
			"edged/containers/dns.TestParseResolvConf/one bad of two",
			"edged/containers/dns.TestResolveErrors/no address",
		},
		"`hostPort` of a sidecar": {
			"edged/containers/runtime.TestPortMappings",
		},
		"`localhostProfile` of seccomp with `..` or absolute": {
			"edged/containers/runtime.TestSecurityContext",
		},
		"`singleProcessOOMKill: false` on cgroup v1": {
			"edged/containers/cgroups.TestUnifiedResources",
		},
		"memory.oom.group, memory.swap.max": {
			"edged/containers/cgroups.TestKernelAt",
			"edged/containers/cgroups.TestUnifiedResources/v2, old kernel",
		},
		"annotation `kubernetes.io/config.seen` of a pod of the API server": {
			"edged/podstate/desired.TestSourceOfAPIPods",
		},
		"`cpu.weight` of the cgroup of all Burstable pods while a resize is refused or waits": {
			"edged/pods/allocation.TestRefusedByNode",
		},
		"a container's memory limit below its use": {
			"edged/pods/resize.TestCheckMemory",
		},
		"`lastProbeTime` of PodResizePending and PodResizeInProgress": {
			"edged/pods/resize.TestCondition",
		},
		"more than a few new questions a second to the cluster's authorizer": {
			"pkg/auth.TestStrangers",
			"pkg/auth.TestFloodedAccessIsNoGrace",
		},
		"a pod that has started no container when memory is short": {
			"edged/node/eviction.TestRank/running and not measured",
		},
		"deferred resizes without any change on the node": {
			"edged/pods/allocation.TestDeferredResizes",
		},
		"`failSwapOn: true` on a node with swap": {
			"pkg/apis/edgecore/v1alpha2.TestNotActedOn/failSwapOn",
		},
		"address of a node whose IPv4 route is gone for a while": {
			"edged/node/node.TestAddressKept/only IPv6's route is left",
		},
		"an event with a message of more than 32 KiB": {
			"edged/podstate/events.TestLongMessage",
		},
		"`/logs/?query=`": {
			"test/differential.TestAPI//logs/?query=",
		},
		"a pod to which nothing happens (`syncFrequency`)": {
			"edged/pods/podworker.TestSettled",
			"edged/pods/podsync.TestSettled",
		},
		"a static manifest with several documents, or of kind List": {
			"edged/podstate/source.TestDecode/several documents",
			"edged/podstate/source.TestTrailingDocument",
		},
		"manifests whose names end with `~`": {
			"edged/podstate/source.TestLeftOversArePassedOver",
		},
		"static pods that refer to Secrets, ConfigMaps, service accounts or other API objects": {
			"edged/podstate/source.TestAPIReferences",
		},
		"an image by its ID that was pulled by its name": {
			"edged/containers/images.TestWhoMayUseAnImage/by its ID, and it was pulled without any",
		},
		"name servers of `resolvConf` that only the node reaches, link-local ones of IPv6 and loopback ones": {
			"edged/containers/dns.TestServersOfTheNodeOnly",
		},
		"last line of a log without its newline (after a power cut or on a full disk)": {
			"edged/containers/crilog.TestTorn/tail 1",
		},
		"damaged lines of a log": {
			"edged/containers/crilog.TestTorn/appended to a text",
			"test/crilog.TestAsAKubelet",
		},
		"logs after a rotation": {
			"edged/containers/crilog.TestWhileItIsRotated",
			"edged/containers/crilog.TestFollowManyRotations",
		},
		"logs without `-f` of a container that floods": {
			"edged/containers/crilog.TestGrowing",
		},
		"logs and streams (`exec`, `attach`, `port-forward`) at once": {
			"edged/serve/streaming.TestShareOfNamespace",
			"edged/serve/streaming.TestMaxOpen",
		},
		"sysctls `net.ipv4.tcp_slow_start_after_idle`, `net.ipv4.tcp_notsent_lowat`": {
			"edged/containers/security.TestSysctls",
		},
		"head of a request to port 10250": {
			"edged/serve/server.TestHeadOfRequests",
		},
		"`/dev/termination-log` of containers": {
			"edged/node/storagelimit.TestFilesCount",
		},
		"tokens that the cluster knew, while reviews are limited": {
			"pkg/auth.TestKnownWhileTooMany",
		},
		"more defaults: readOnlyPort, address, staticPodPath, failCgroupV1": {
			"pkg/apis/edgecore/v1alpha2.TestKubeadmFile",
		},
		"memoryThrottlingFactor, memoryReservationPolicy": {
			"pkg/apis/edgecore/v1alpha2.TestNotActedOn/memoryThrottlingFactor",
		},
		"system containers `runtime` and `misc` of the summary": {
			"edged/node/stats.TestSystemContainers",
		},
	}
}

// TestKnown: each difference that is allowed has its row in the documentation, and each row has a difference that is
// allowed or a test elsewhere.
func TestKnown(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "differences.md"))
	env.Must(t, err)
	rows := rowsOf(string(page))
	shown := map[string]bool{}
	for _, a := range Known() {
		shown[a.Row] = true
		if !slices.Contains(rows, a.Row) {
			t.Errorf("difference %+v: row %q is not in docs/differences.md, want it there", a, a.Row)
		}
	}
	for row, tests := range elsewhere() {
		if !slices.Contains(rows, row) || shown[row] {
			t.Errorf("row %q of the list of tests elsewhere: in docs/differences.md %v, allowed here %v; want "+
				"true, false",
				row, slices.Contains(rows, row), shown[row])
		}
		shown[row] = len(tests) > 0
		for _, test := range tests {
			if !hasTest(t, test) {
				t.Errorf("row %q: test %s does not exist, want one that shows the row", row, test)
			}
		}
	}
	for _, row := range rows {
		if !shown[row] {
			t.Errorf("row %q of docs/differences.md has no test, want an allowed difference or a test elsewhere", row)
		}
	}
}

// rowsOf returns the first cells of the tables of a page, without their heads.
func rowsOf(page string) []string {
	var rows []string
	for line := range strings.Lines(page) {
		cell, ok := strings.CutPrefix(line, "| ")
		if !ok || strings.HasPrefix(line, "| what |") {
			continue
		}
		cell, _, _ = strings.Cut(cell, " | ")
		rows = append(rows, cell)
	}
	return rows
}

// hasTest reports whether a test of elsewhere is there.
func hasTest(t *testing.T, test string) bool {
	t.Helper()
	folder, name, _ := strings.Cut(test, ".")
	name, text, _ := strings.Cut(name, "/")
	files, err := filepath.Glob(filepath.Join("..", "..", folder, "*_test.go"))
	env.Must(t, err)
	function := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(`)
	var found, named bool
	for _, file := range files {
		if filepath.Base(file) == "known_test.go" {
			continue // it has the names of all tests
		}
		data, err := os.ReadFile(file)
		env.Must(t, err)
		found = found || function.Match(data)
		named = named || strings.Contains(string(data), text)
	}
	return found && named
}
