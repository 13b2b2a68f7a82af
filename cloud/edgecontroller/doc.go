// Package edgecontroller connects the API server and the edge nodes.
//
// Downstream, it knows what each node must have: the pods bound to it, the ConfigMaps and Secrets that those pods name,
// its Node object, and for our edgecores the services of its pods' namespaces. It answers from shared informers'
// caches. It passes changed keys (new, changed or deleted) to the hub, never content: the hub sends what the caches
// hold at the moment of sending. There are no counters that could go stale: which node has which ConfigMap is an index
// over the cached pods, and an entry disappears with the last pod that names it. Cached objects are shared and never
// modified.
//
// A deletion is final on the edge, so it is never decided from a cache alone: a cache may be behind another
// cloudcore's. Object asks the API server before it reports an object deleted, and before it sends a pod whose deletion
// the node may have seen; podLists says what that costs.
//
// Upstream, it carries out nodes' requests (package requests), and cares for Nodes and the fate of their pods
// (package nodes). In its own name cloudcore only creates Nodes, which need a label that a node may not set itself, and
// changes the tolerations of pods bound to them.
//
// It keeps a hash of the status that each connected node of ours reported last for each of its pods. If another writer
// changes such a status, it asks the node to report it again (statusRequests).
//
// Any number of controllers may run in parallel; all state is in the API server.
package edgecontroller
