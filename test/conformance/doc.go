// Package conformance shows that edged runs any pod that a kubelet runs: for each field of a pod that a Linux
// kubelet acts on, a pod on the real containerd, created through a real kube-apiserver and cloudcore, and what is
// seen inside the container and in its status. docs/pod-support.md is the table of the fields; TestTable checks
// that it is complete and names tests that exist.
//
// A row is one pod (see type row): rows.go lists the functions that return them, one for each area, in a file
// of its own. Every row runs on containerd 1.6 and on 2.x, many at once, in a namespace for each node; so names of
// pods and of objects must be the row's own. To run one:
//
//	go test ./test/conformance -run 'TestPods/containerd1/NAME$'
//
// The harness binds the pod to the node, runs the row's check, deletes the pod, and checks that it goes; after all
// rows it checks that no mount, cgroup, network namespace, process or folder is left of any.
package conformance
