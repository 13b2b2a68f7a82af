package main

// promises are those of the README, each with the test that shows it on real parts. `make test` fails if one of these tests
// did not run. The suites hold more; `make test-all` runs them whole.
var promises = []promise{
	// A node on its own.
	{"pods run as their manifests say", "./test/edge", "TestPodsRunAsTheySay"},
	{"pods come back after a reboot, with no network and no cloud", "./test/edge", "TestReboot"},
	{"pods run on while the agent is killed, and it adopts them", "./test/edge", "TestKill9Adopts"},
	{"a damaged store is kept aside, and pods run on", "./test/edge", "TestDamagedStore"},
	{"a bad manifest is reported and changes nothing", "./test/edge", "TestBadInput"},
	{"get, logs, exec, status and images work at the device", "./test/edge", "TestCommands"},
	{"containers get the devices of device plugins", "./test/edge", "TestDevices"},
	{"containerd 2 works as well, with its events", "./test/edge", "TestContainerd2"},
	{"pods have volumes of CSI drivers", "./test/csi", "TestFileSystem"},
	{"images, dead containers and leftovers that nobody needs go", "./test/gc", "TestClear"},
	{"pods are evicted before a resource runs out", "./test/evict", "TestSoftThreshold"},
	{"the node's figures are those of what its pods do", "./test/stats", "TestStats"},
	{"the status page shows the node in a browser", "./test/page", "TestDevice"},
	// A node in a cluster.
	{"a device joins a cluster", "./test/link", "TestLink/Join"},
	{"pods run on without a link, and nothing is lost when it is back", "./test/link", "TestLink/Offline"},
	{"edgecore speaks KubeEdge's wire format", "./test/wire", "TestEdge"},
	{"cloudcore speaks KubeEdge's wire format", "./test/wire", "TestCloud"},
	{"cloudcore works with the rights of its manifests alone", "./test/cloud", "TestManifests"},
	{"kubectl logs, exec, attach, port-forward and top work", "./test/kubectl", "TestKubectl"},
	{"the kubelet's API answers only who may ask", "./test/kubeletapi", "TestKubeletAPI"},
	{"logs are bounded, and a shutdown ends pods in good order", "./test/service", "TestService"},
	{"the cluster sees the state of the node", "./test/node", "TestNode"},
}
