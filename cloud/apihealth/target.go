package apihealth

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/client-go/transport"
)

// target is what a request is for.
type target struct {
	// kind is one of few: it is the value of a label.
	kind string
	// node is the node in whose name the request is made; empty for requests in cloudcore's own name. about is then the
	// node that the object belongs to, if the caller has said so with ForNode.
	node, about string
	write       bool
}

// nodeKey is the key of ForNode's value.
type nodeKey struct{}

// ForNode returns a context for requests that cloudcore makes in its own name about an object that belongs to a node.
// If one of these is refused, that may be because of the node or the object.
func ForNode(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, nodeKey{}, node)
}

// writesAsNode has the kinds of what is written in a node's name, writesOwn of what cloudcore writes in its own, by
// resource.
var (
	writesAsNode = map[string]string{
		"leases": "lease", "nodes": "node", "nodes/status": "nodestatus", "pods": "pod", "pods/status": "podstatus",
		"serviceaccounts/token": "token", "events": "event", "certificatesigningrequests": "csr",
		"csinodes": "csinode", "persistentvolumeclaims/status": "claimstatus", "tokenreviews": "review",
		"subjectaccessreviews": "review",
	}
	writesOwn = map[string]string{
		"nodes": "nodelabels", "pods": "toleration", "secrets": kindSecret, "leases": kindReplica,
		"events": "deviceevent", "devices": "device", "devicestatuses": "devicestatus",
		"objectsyncs": "record", "objectsyncs/status": "record", "clusterobjectsyncs": "record",
		"clusterobjectsyncs/status": "record",
	}
)

const (
	// kindRegistration is the creation of Nodes, which cloudcore does in its own name.
	kindRegistration = "registration"
	kindOther        = "other"
	// kindSecret and kindReplica are writes of objects that cloudcore itself cannot do without.
	kindSecret  = "secret"
	kindReplica = "replica"
)

const nodeUser = "system:node:"

// targetOf returns what a request is for. ok is false if its answer says nothing: cloudcore asks at its start how it
// may act as nodes, and expects refusals.
func targetOf(r *http.Request) (t target, ok bool) {
	resource, sub, named, ok := resourceOf(r.URL.Path)
	if !ok || resource == "selfsubjectreviews" {
		return target{}, false
	}
	user := r.Header.Get(transport.ImpersonateUserHeader)
	t.node = strings.TrimPrefix(user, nodeUser)
	if t.node == "" {
		t.about, _ = r.Context().Value(nodeKey{}).(string)
	}
	if sub != "" {
		resource += "/" + sub
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		t.kind = readVerb(r, named) + " " + resource
		if t.node != "" {
			t.kind += " for nodes"
		}
		return t, true
	}
	t.write = true
	kinds := writesOwn
	if t.node != "" {
		kinds = writesAsNode
	}
	t.kind = kinds[resource]
	switch {
	case t.kind == "":
		t.kind = kindOther
	case t.node == "" && resource == "nodes" && r.Method == http.MethodPost:
		t.kind = kindRegistration
	}
	return t, true
}

// readVerb returns the verb of RBAC for a GET.
func readVerb(r *http.Request, named bool) string {
	switch query := r.URL.Query(); {
	case query.Get("watch") == "true" || query.Get("watch") == "1":
		return "watch"
	case named:
		return "get"
	}
	return "list"
}

// resourceOf splits the path of a request: /api/v1/namespaces/NAMESPACE/pods/NAME/status is of the resource pods with
// the subresource status. It may have a prefix, as where a proxy is in front.
func resourceOf(path string) (resource, sub string, named, ok bool) {
	core, group := strings.Index(path, "/api/"), strings.Index(path, "/apis/")
	var parts []string
	switch {
	case core >= 0 && (group < 0 || core < group):
		parts = strings.Split(strings.Trim(path[core:], "/"), "/")[1:] // VERSION
	case group >= 0:
		parts = strings.Split(strings.Trim(path[group:], "/"), "/")[2:] // VERSION, after GROUP
	}
	if len(parts) < 2 {
		return "", "", false, false
	}
	parts = parts[1:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		sub = parts[2]
	}
	return parts[0], sub, len(parts) > 1, true
}
