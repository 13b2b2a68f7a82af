// Package edgecontroller connects the API server and the edge nodes. It joins its parts, and routes to them what the
// informers and the hub report.
//
// Downstream, package desired knows what each node must have, and answers from shared informers' caches (package
// caches).
//
// Upstream, package requests carries out nodes' requests, and package nodes cares for Nodes and the fate of their pods.
// In its own name cloudcore only creates Nodes, which need a label that a node may not set itself, and changes the
// tolerations of pods bound to them. Package statuses has a status reported again that another writer has changed.
//
// Any number of controllers may run in parallel; all state is in the API server.
package edgecontroller
