// Package differential runs the same pods on two node agents and compares what can be seen of them. By default the left
// one is a real kubelet and the right one edgecore: the kubelet decides what is right.
//
// Both nodes belong to one cluster, and each has a containerd, a bridge, a cgroup root and the test images of its own.
// A [Case] is a pod, with the objects that it needs and a list of steps. It runs on both nodes at the same time, in a
// namespace that has the node's name, and what is seen becomes a [Trace]: for each path a sequence of values. These are
// the paths:
//
//	pod....              the pod in the API: every value that each field of status, and the generation, ever had
//	events/...           the events of the pod, by type, reason, source and message
//	inside/STEP/...      the containers at a step, seen from /proc: environment, mounts, files of volumes, identity, limits, cgroups
//	cri/...              the calls on the runtime's socket, which goes through a recording proxy
//	logs/...             names and contents of the log files
//	step/STEP            the error of a step that failed
//	left/WHAT            what is left when the pod is gone: a folder, mount, cgroup, container, sandbox or network namespace
//
// Names, IDs, addresses and times that differ from node to node are replaced by placeholders ([Names]). Durations are
// not compared, only the order of values.
//
// The limits of pods on cgroup v2 are compared on a booted machine: see TestKubelet of test/vm, whose case is
// "cgroup2".
//
// A path differs if its values differ. A value of a pod's status that lasts for less than two seconds may be missing on
// the other side: edgecore leaves out states that another one follows at once, and the kubelet bundles reports when it
// is busy. What two agents may do in either order shows by chance, so a case with differences runs again, up to
// -attempts times; a path differs only if no run of the left node had the values of any run of the right one. Every
// difference fails the test, except those of [Known], each of which names its line of docs/differences.md. At its end
// each test prints a table of what was compared, and of how many differences each of these lines allowed (go test -v).
//
// To add a case, append to the list of a file in this folder, for example in volumes_test.go:
//
//	{
//		Name: "secret-unused",
//		Objects: "...",                  // manifests; @NODE@ is the node's name, @NAME@ the case's, @DIR@ a folder of it
//		Spec:    "containers: [{name: main}]", // image, command, pull policy and a grace period of 1 s are filled in
//		Steps:   []Step{Running(), Inspect(), Exec("main", "touch /data/x")},
//	}
//
// and run it:
//
//	go test ./test/differential -run 'TestPods/secret-unused$' -v
//
// Flags: -left and -right choose the agents, "kubelet", "edgecore", "edgecore:PATH", such as another version of
// edgecore, or "kubeedge:VERSION", KubeEdge's edgecore 1.12 or 1.23; -attempts; -pods and -seed choose how many random
// pods TestRandomPods runs; -print shows all values, also equal ones. For example:
//
//	go test ./test/differential -run 'TestPods/cases/status-' -v -right kubeedge:1.23 -attempts 1
package differential
