// Package kube pins the Kubernetes and the etcd that the tests and the demonstration run: the tools
// of this module's go.mod. It is a module of its own, so that their dependencies stay out of
// edgecore's. test/testenv/kube builds and starts them.
package kube
