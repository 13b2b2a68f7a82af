package main

// promises are those of the README, each with the test that shows it on real parts. `make test` fails if one of these
// tests did not run. The suites hold more; `make test-all` runs them whole.
var promises = []promise{
	// A node on its own.
	{"pods run as their manifests say", "./test/edge", "TestPodsRunAsTheySay", nil},
	{"pods have the time to end that their grace period says", "./test/edge", "TestGracefulEnd", nil},
	{"pods reach each other, and host ports reach them", "./test/edge", "TestHostPortsAndNamespaces", nil},
	{"pods of a cluster run from the store alone", "./test/edge", "TestStoredPods", nil},
	{"pods come back after a reboot, with no network and no cloud", "./test/edge", "TestReboot", nil},
	{"pods run on while the agent is killed, and it adopts them", "./test/edge", "TestKill9Adopts", nil},
	{"a damaged store is set aside, and pods run on", "./test/edge", "TestDamagedStore", nil},
	{"a full disk stops no pod", "./test/edge", "TestFullDisk", nil},
	{"a bad manifest is reported and changes nothing", "./test/edge", "TestBadInput", nil},
	{"get, logs, exec, status and images work at the device", "./test/edge", "TestCommands", nil},
	{"containers get the devices of device plugins", "./test/edge", "TestDevices", nil},
	{"device plugins in plugins_registry are found", "./test/edge", "TestPluginsRegistry", nil},
	{"pods have volumes of CSI drivers", "./test/csi", "TestFileSystem", nil},
	{"volumes of CSI drivers survive an agent that is killed", "./test/edge", "TestCSIOverKills", nil},
	{"the runtime has the names, logs and containers that crictl expects", "./test", "TestRuntime", nil},
	{"a container's death is noticed at once", "./test/pleg", "TestDeathIsNoticed", nil},
	{"unused containers and leftovers are removed", "./test/gc", "TestClear", nil},
	{"pods are evicted before a resource runs out", "./test/evict", "TestShortOfEverything", []string{"memory"}},
	{"the node's figures are those of what its pods do", "./test/stats", "TestStats", nil},
	{"damaged images are repaired", "./test/repair", "TestRepair/containerd_1", []string{"layers"}},
	{"a device of KubeEdge is taken over with its containers running on", "./test/adopt", "TestAdopt/containerd1", nil},
	{"2 x 10 pods come and go, and nothing grows", "./test/bench/soak", "TestSoak", nil},
	{"the status page shows the node in a browser", "./test/page", "TestDevice", nil},
	// A node in a cluster.
	{"a device joins, runs pods offline and reports it all later", "./test/link", "TestLink/Offline/cut", nil},
	{
		says: "pods behave as docs/pod-support.md says",
		pkg:  "./test/conformance",
		test: "TestPods/containerd1",
		rows: []string{"probe", "sidecar", "env", "claim", "configmap", "secret", "pre-stop", "restart", "resources"},
	},
	{
		says: "the same pods look the same as on a real kubelet",
		pkg:  "./test/differential",
		test: "TestPods/cases",
		rows: []string{
			"basic-", "ending-forced", "ending-grpc", "ending-image-never", "ending-image-invalid", "status-deleted", "status-failed",
			"status-host", "status-rejected", "status-resources", "volumes-",
		},
	},
	{"differences from a real kubelet are found", "./test/differential", "TestPlanted", nil},
	{"edgecore speaks KubeEdge's wire format", "./test/wire", "TestEdge", nil},
	{"cloudcore speaks KubeEdge's wire format", "./test/wire", "TestCloud", nil},
	{"a node of KubeEdge gets its certificate from cloudcore", "./test/wire", "TestHTTPSOfKubeEdgesEdge", nil},
	{"edgecore gets its certificate from a cloudcore of KubeEdge", "./test/wire", "TestHTTPSOfKubeEdgesCloud", nil},
	{"cloudcore works with the rights of its manifests alone", "./test/cloud", "TestManifests", nil},
	{
		says: "kubectl works with pods on a device",
		pkg:  "./test/kubectl",
		test: "TestKubectl/containerd1/verbs",
		rows: []string{"logs", "exec", "cp", "port-forward", "attach"},
	},
	{"the kubelet's API answers only who may ask", "./test/kubeletapi", "TestKubeletAPI", nil},
	{"logs are bounded, and a shutdown ends pods in good order", "./test/service", "TestService", nil},
	{"the cluster sees the state of the node", "./test/node", "TestNode", nil},
	{"a demo that is interrupted leaves nothing behind", "./hack/demo", "TestInterrupted", nil},
	{"the image of cloudcore holds what it needs", "./hack/image", "TestArchive", nil},
}
