// Package apirequest reads what a request asks of kube-apiserver from its method and URL, as kube-apiserver does
// (RequestInfo of k8s.io/apiserver). It decides nothing: kube-apiserver authorizes the request by its own reading.
package apirequest

import (
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/fields"
)

// Info is what a request asks for.
type Info struct {
	// Verb is that of authorization: get, list, watch, create, update, patch, delete, deletecollection, or proxy. For a
	// path that is not of a resource it is the method in lower case; for an unknown method of a resource it is empty.
	Verb string
	// Path is the path of the URL.
	Path string
	// IsResource reports whether the path is of a resource; if not, the fields below are empty.
	IsResource bool
	// Group is empty for the core group.
	Group, Version, Resource, Subresource string
	// Namespace is empty for what is in none, and for all namespaces.
	Namespace string
	// Name is empty for a list, a watch of several objects, and an object that is created.
	Name string
	// IsUpgrade reports whether the client asks for another protocol on its connection.
	IsUpgrade bool
	// Follow reports whether a log is read to the container's end.
	Follow bool
}

// maxShown limits how much of a request an error or a log line repeats.
const maxShown = 100

// Of reads a request.
func Of(r *http.Request) Info {
	info := Parse(r.Method, r.URL)
	info.IsUpgrade = r.Header.Get("Upgrade") != "" &&
		httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
	return info
}

// Parse reads a method and a URL.
func Parse(method string, u *url.URL) Info {
	info := Info{Verb: strings.ToLower(method), Path: u.Path}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[1:]
	case len(parts) >= 4 && parts[0] == "apis":
		info.Group, parts = parts[1], parts[2:]
	default:
		return info
	}
	info.IsResource, info.Version, parts = true, parts[0], parts[1:]
	info.Verb = verbOf(method)
	if parts[0] == "watch" || parts[0] == "proxy" { // old forms that have the verb in the path
		if len(parts) < 2 {
			return Info{Verb: strings.ToLower(method), Path: u.Path}
		}
		info.Verb, parts = parts[0], parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		info.Namespace = parts[1]
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	info.Resource = parts[0]
	if len(parts) >= 2 {
		info.Name = parts[1]
	}
	if len(parts) >= 3 && info.Verb != "proxy" {
		info.Subresource = parts[2]
	}
	info.readQuery(u)
	return info
}

func verbOf(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// readQuery tells a list, a watch and a deletion of several objects from what concerns one object.
func (i *Info) readQuery(u *url.URL) {
	switch {
	case i.Name == "" && i.Verb == "get":
		query := u.Query()
		i.Verb = "list"
		if isTrue(query, "watch") {
			i.Verb = "watch"
		}
		selector, err := fields.ParseSelector(query.Get("fieldSelector"))
		if err != nil {
			return // kube-apiserver refuses it
		}
		if name, ok := selector.RequiresExactMatch("metadata.name"); ok && isSegment(name) {
			i.Name = name
		}
	case i.Name == "" && i.Verb == "delete":
		i.Verb = "deletecollection"
	case i.Subresource == "log":
		i.Follow = isTrue(u.Query(), "follow")
	}
}

// isTrue reads a boolean as kube-apiserver does: anything but "false" and "0" is true.
func isTrue(query url.Values, name string) bool {
	values := query[name]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// isSegment reports whether a name can be a part of a path.
func isSegment(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/%")
}

// IsRead reports whether a request changes nothing: it can be sent again if its answer was lost.
func (i *Info) IsRead() bool {
	switch i.Verb {
	case "get", "list", "watch", "head", "options":
		return !i.IsUpgrade
	}
	return false
}

// IsLong reports whether a request has no end of its own: a watch, a log that is followed, or another protocol.
func (i *Info) IsLong() bool {
	if i.IsUpgrade || i.Verb == "watch" || i.Verb == "proxy" || i.Follow {
		return true
	}
	switch i.Subresource {
	case "attach", "exec", "portforward", "proxy":
		return i.IsResource
	}
	return false
}

// String names what the request is about, for a person: pods shop/web, deployments.apps in shop, /version.
func (i *Info) String() string {
	if !i.IsResource {
		return clip(i.Path)
	}
	var b strings.Builder
	b.WriteString(i.Resource)
	if i.Group != "" {
		b.WriteString("." + i.Group)
	}
	if i.Subresource != "" {
		b.WriteString("/" + i.Subresource)
	}
	namespace := i.Namespace
	if i.Resource == "namespaces" {
		namespace = ""
	}
	switch {
	case i.Name != "" && namespace != "":
		b.WriteString(" " + namespace + "/" + i.Name)
	case i.Name != "":
		b.WriteString(" " + i.Name)
	case namespace != "":
		b.WriteString(" in " + namespace)
	}
	return clip(b.String())
}

func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}
