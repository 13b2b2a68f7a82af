// Package kubelet pins the kubelet that test/differential compares edgecore with: the tool of this module's go.mod. It is a
// module of its own, so that the test cluster is not built again when it changes. Its version of Kubernetes is the one of
// test/kube.
package kubelet
