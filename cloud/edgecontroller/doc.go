// Package edgecontroller stands between the API server and the nodes of edges.
//
// Downstream, it knows what each node is to have: the pods that are bound to it, the configmaps and secrets that those
// pods name, its node object, and for edges of ours the services of its pods' namespaces. It answers from the caches of
// shared informers, and tells the hub of each key that changed (new, changed or gone), never of content: what is sent
// is what the caches hold at the moment of sending. Nothing is counted and nothing can go stale: which node has which
// configmap is an index over the cached pods, and ends with the last pod that names it. Objects in the caches are
// shared and never written to.
//
// That an object is gone is final on the edge, so it is never decided from a cache alone: a cache may be behind another
// cloudcore's. Object asks the API server before it says so, and before it sends a pod that the node may have been told
// is gone; see podLists for what that costs.
//
// Upstream, it carries out what nodes ask for. Every write for a node, and every read that the caches cannot answer,
// is done in the name of the node (user system:node:<name>, group system:nodes), so that the API server's node
// authorizer and the NodeRestriction admission decide what a node may do, as for any kubelet. The API server has to
// run with both, as those of kubeadm do. Only these things are done in cloudcore's own name: the creation of Nodes,
// which need a label that a node may not give itself, and the tolerations of pods that are bound to them.
//
// No request makes the process end: what cannot be understood is answered with a metav1.Status that says why.
//
// Any number of controllers may run beside each other; all state is in the API server.
package edgecontroller
