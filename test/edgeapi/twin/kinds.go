package twin

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
)

// kind is a kind of request, or of a few requests that belong together.
type kind struct {
	name string
	make func(*generator) []Request
}

// generator makes names and values.
type generator struct {
	rnd  *rand.Rand
	seed uint64
	last int
}

// fresh is a name that no other request of this seed or of another one has.
func (g *generator) fresh() string {
	g.last++
	return fmt.Sprintf("twin-%d-%d", g.seed, g.last)
}

func pick[T any](g *generator, of ...T) T { return of[g.rnd.IntN(len(of))] }

// shared is the namespace of objects that nobody writes during a comparison: Fixed are there.
const shared = "/api/v1/namespaces/" + Shared

// Shared is the namespace of the objects that both sides read.
const Shared = "twin-shared"

const (
	own        = "/api/v1/namespaces/" + Namespace
	applyPatch = "application/apply-patch+yaml"
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	strategic  = "application/strategic-merge-patch+json"
	table      = "application/json;as=Table;v=v1;g=meta.k8s.io"
	partial    = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	partials   = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	protobuf   = "application/vnd.kubernetes.protobuf"
)

// Fixed are the ConfigMaps that have to be in Shared before a comparison: their names and labels.
var Fixed = map[string]map[string]string{
	"a": {"tier": "front", "n": "1"}, "b": {"tier": "front", "n": "2"}, "c": {"tier": "back", "n": "3"},
	"d": {"tier": "back"}, "e": nil,
}

func get(path string, header ...string) []Request { return one(http.MethodGet, path, "", header...) }

// one is a single request; header has keys and values.
func one(method, path, body string, header ...string) []Request {
	r := Request{Method: method, Path: path, Body: body, Header: map[string]string{}}
	if body != "" {
		r.Header["Content-Type"] = "application/json"
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header[header[i]] = header[i+1]
	}
	return []Request{r}
}

func watch(path string, events int, header ...string) []Request {
	r := get(path, header...)
	r[0].Watch = events
	return r
}

func configMap(name string, labels ...string) string {
	meta := map[string]any{"name": name}
	if len(labels) > 1 {
		meta["labels"] = map[string]any{labels[0]: labels[1]}
	}
	return jsonOf(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": map[string]any{"key": "value of " + name},
	})
}

func deployment(name string, replicas int) string {
	labels := map[string]any{"app": name}
	return jsonOf(map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"replicas": replicas, "selector": map[string]any{"matchLabels": labels}, "template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec": map[string]any{
					"nodeSelector": map[string]any{"no": "node"},
					"containers":   []any{map[string]any{"name": "main", "image": "none"}},
				},
			},
		},
	})
}

// created is a ConfigMap of the side's own, followed by other requests about it.
func created(then func(g *generator, path string) []Request) func(*generator) []Request {
	return func(g *generator) []Request {
		name := g.fresh()
		return append(one(http.MethodPost, own+"/configmaps", configMap(name, "made", "by-twin")),
			then(g, own+"/configmaps/"+name)...)
	}
}

// plain is a kind that is the same each time.
func plain(name string, r []Request) kind {
	return kind{name, func(*generator) []Request { return r }}
}

var kinds = []kind{
	{"get", func(g *generator) []Request { return get(shared + "/configmaps/" + pick(g, "a", "b", "c", "d", "e")) }},
	plain("get, none", get(shared+"/configmaps/none")),
	plain("get, Table", get(shared+"/configmaps/a", "Accept", table)),
	plain("get, metadata", get(shared+"/configmaps/a", "Accept", partial)),
	plain("get, protobuf", get(shared+"/configmaps/a", "Accept", protobuf)),
	plain("get, YAML", get(shared+"/configmaps/a", "Accept", "application/yaml")),
	plain("get, a type that nobody has", get(shared+"/configmaps/a", "Accept", "image/png")),
	plain("get, pretty", get(shared+"/configmaps/a?pretty=true")),
	plain("get, HEAD", one(http.MethodHead, shared+"/configmaps/a", "")),
	plain("list", get(shared+"/configmaps")),
	plain("list, Table", get(shared+"/configmaps", "Accept", table)),
	plain("list, Table without objects", get(shared+"/configmaps?includeObject=None", "Accept", table)),
	plain("list, metadata", get(shared+"/configmaps", "Accept", partials)),
	plain("list, protobuf", get(shared+"/configmaps", "Accept", protobuf)),
	plain("list, of all namespaces", get("/api/v1/configmaps?fieldSelector=metadata.namespace="+Shared)),
	{"list, labels", func(g *generator) []Request {
		return get(shared + "/configmaps?labelSelector=" + pick(g, "tier%3Dfront", "tier%21%3Dback",
			"tier+in+%28front%2Cback%29", "%21tier", "n", "tier%3Dfront%2Cn%3D2", "tier%3Dnone"))
	}},
	{"list, fields", func(g *generator) []Request {
		return get(shared + "/configmaps?fieldSelector=" + pick(g, "metadata.name%3Da", "metadata.name%21%3Da",
			"metadata.name%3Dnone"))
	}},
	plain("list, a field that cannot be selected", get(shared+"/configmaps?fieldSelector=data.key%3D1")),
	plain("list, a selector that cannot be read", get(shared+"/configmaps?labelSelector=%3D%3D%3D")),
	{"list, pages", func(g *generator) []Request {
		return get(fmt.Sprintf("%s/configmaps?limit=%d", shared, 1+g.rnd.IntN(6)))
	}},
	plain("list, a continuation that is none", get(shared+"/configmaps?limit=2&continue=none")),
	{"list, versions", func(g *generator) []Request {
		return get(shared + "/configmaps?" + pick(g, "resourceVersion=0",
			"resourceVersion=1&resourceVersionMatch=NotOlderThan", "resourceVersion=0&resourceVersionMatch=Exact",
			"resourceVersionMatch=Exact", "resourceVersion=none"))
	}},
	plain("list, a version to come", get(shared+"/configmaps?resourceVersion=999999999999&timeoutSeconds=1")),
	plain("list, nothing there", get("/api/v1/namespaces/none/configmaps")),
	plain("list, Services", get("/api/v1/namespaces/default/services")),
	plain("list, namespaces", get("/api/v1/namespaces?fieldSelector=metadata.name%3D"+Shared)),
	plain("watch, from the beginning", watch(shared+"/configmaps?watch=true&timeoutSeconds=1", 5)),
	plain("watch, end", watch(shared+"/configmaps?watch=true&timeoutSeconds=1&labelSelector=tier%3Dnone", 1)),
	plain("watch, initial events", watch(shared+"/configmaps?watch=true&timeoutSeconds=1&sendInitialEvents=true"+
		"&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&labelSelector=tier", 5)),
	plain("watch, initial events without a match", watch(shared+"/configmaps?watch=true&sendInitialEvents=true", 1)),
	plain("watch, metadata", watch(shared+"/configmaps?watch=true&timeoutSeconds=1", 5, "Accept", partial)),
	plain("watch, a version that is no number", watch(shared+"/configmaps?watch=true&resourceVersion=none", 1)),
	plain("watch, one object", watch(shared+"/configmaps?watch=true&timeoutSeconds=1"+
		"&fieldSelector=metadata.name%3Db", 1)),
	plain("watch, by the old path", watch("/api/v1/watch/namespaces/"+Shared+"/configmaps?timeoutSeconds=1", 5)),
	{"create", created(func(_ *generator, path string) []Request { return get(path) })},
	{"create, twice", func(g *generator) []Request {
		r := one(http.MethodPost, own+"/configmaps", configMap(g.fresh()))
		return append(r, r...)
	}},
	{"create, dry run", func(g *generator) []Request {
		name := g.fresh()
		return append(one(http.MethodPost, own+"/configmaps?dryRun=All", configMap(name)),
			get(own+"/configmaps/"+name)...)
	}},
	plain("create, invalid", one(http.MethodPost, own+"/configmaps", configMap("NOT A NAME"))),
	plain("create, no JSON", one(http.MethodPost, own+"/configmaps", "{")),
	plain("create, no type", one(http.MethodPost, own+"/configmaps", `{"a":1}`, "Content-Type", "text/plain")),
	plain("create, another kind", one(http.MethodPost, own+"/configmaps", `{"apiVersion":"v1","kind":"Pod"}`)),
	{"create, a generated name", func(g *generator) []Request {
		return one(http.MethodPost, own+"/configmaps?fieldManager=twin",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"`+g.fresh()+`-"}}`)
	}},
	{"create, unknown fields", func(g *generator) []Request {
		var r []Request
		for _, how := range []string{"Warn", "Strict", "Ignore", "Nonsense"} {
			r = append(r, one(http.MethodPost, own+"/configmaps?fieldValidation="+how,
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+g.fresh()+`"},"dta":{}}`)...)
		}
		return r
	}},
	{"create, YAML", func(g *generator) []Request {
		return one(http.MethodPost, own+"/configmaps",
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: "+g.fresh()+"\ndata:\n  a: b\n",
			"Content-Type", "application/yaml")
	}},
	{"update", created(func(_ *generator, path string) []Request {
		name := path[strings.LastIndex(path, "/")+1:]
		return append(one(http.MethodPut, path, configMap(name, "made", "again")), get(path)...)
	})},
	{"update, a conflict", created(func(_ *generator, path string) []Request {
		name := path[strings.LastIndex(path, "/")+1:]
		return one(http.MethodPut, path, strings.Replace(configMap(name), `"name"`, `"resourceVersion":"1","name"`, 1))
	})},
	{"update, another name", created(func(_ *generator, path string) []Request {
		return one(http.MethodPut, path, configMap("other"))
	})},
	{"patch, JSON", created(func(_ *generator, path string) []Request {
		return append(one(http.MethodPatch, path, `[{"op":"replace","path":"/data/key","value":"new"}]`,
			"Content-Type", jsonPatch), get(path)...)
	})},
	{"patch, JSON that fails", created(func(_ *generator, path string) []Request {
		return one(http.MethodPatch, path, `[{"op":"test","path":"/data/key","value":"other"}]`,
			"Content-Type", jsonPatch)
	})},
	{"patch, merge", created(func(_ *generator, path string) []Request {
		return one(http.MethodPatch, path, `{"data":{"key":null,"new":"1"}}`, "Content-Type", mergePatch)
	})},
	{"patch, strategic", created(func(_ *generator, path string) []Request {
		return one(http.MethodPatch, path, `{"metadata":{"labels":{"x":"y"}}}`, "Content-Type", strategic)
	})},
	{"patch, a type that nobody has", created(func(_ *generator, path string) []Request {
		return one(http.MethodPatch, path, `{}`, "Content-Type", "application/nonsense")
	})},
	{"apply", func(g *generator) []Request {
		name := g.fresh()
		path := own + "/configmaps/" + name + "?fieldManager="
		apply := func(manager, value string, more ...string) []Request {
			return one(http.MethodPatch, path+manager+strings.Join(more, ""),
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"},"data":{"key":"`+value+`"}}`,
				"Content-Type", applyPatch)
		}
		r := append(apply("one", "1"), apply("one", "2")...)
		r = append(r, apply("two", "3")...) // a conflict
		return append(r, apply("two", "3", "&force=true")...)
	}},
	plain("apply, no manager", one(http.MethodPatch, own+"/configmaps/x", `{}`, "Content-Type", applyPatch)),
	{"delete", created(func(_ *generator, path string) []Request {
		return append(one(http.MethodDelete, path, ""), get(path)...)
	})},
	{"delete, preconditions", created(func(_ *generator, path string) []Request {
		return one(http.MethodDelete, path, `{"preconditions":{"uid":"other"}}`)
	})},
	{"delete, a policy that nobody has", created(func(_ *generator, path string) []Request {
		return one(http.MethodDelete, path+"?propagationPolicy=Nonsense", "")
	})},
	plain("delete, none", one(http.MethodDelete, own+"/configmaps/none", "")),
	{"delete, collection", created(func(*generator, string) []Request {
		return append(one(http.MethodDelete, own+"/configmaps?labelSelector=made%3Dby-twin", ""),
			get(own+"/configmaps?labelSelector=made%3Dby-twin")...)
	})},
	{"subresource, scale", func(g *generator) []Request {
		name := g.fresh()
		path := "/apis/apps/v1/namespaces/" + Namespace + "/deployments"
		r := append(one(http.MethodPost, path, deployment(name, 0)), get(path+"/"+name+"/scale")...)
		r = append(r, one(http.MethodPatch, path+"/"+name+"/scale", `{"spec":{"replicas":0}}`,
			"Content-Type", mergePatch)...)
		return append(r, one(http.MethodDelete, path+"/"+name, "")...)
	}},
	plain("subresource, none", get(shared+"/configmaps/a/scale")),
	plain("a resource that nobody has", get(shared+"/nonsenses")),
	plain("a group that nobody has", get("/apis/nonsense.example/v1/things")),
	plain("a path that nobody has", get("/nonsense")),
	plain("a path with dots", get(shared+"/configmaps/%2e%2e/configmaps")),
	plain("a method that nobody has", one("NONSENSE", shared+"/configmaps/a", "")),
	plain("a method that the path has not", one(http.MethodPut, shared+"/configmaps", configMap("a"))),
	plain("forbidden, get", get("/api/v1/namespaces/kube-system/secrets/none")),
	plain("forbidden, list", get("/api/v1/secrets")),
	plain("forbidden, watch", watch("/api/v1/namespaces/kube-system/secrets?watch=true", 1)),
	plain("forbidden, create", one(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"twin-new"}}`)),
	plain("forbidden, another path", get("/metrics")),
	plain("impersonation", get(shared+"/configmaps", "Impersonate-User", "system:admin")),
	plain("discovery, groups", get("/apis")),
	plain("discovery, versions", get("/api")),
	plain("discovery, resources", get("/apis/apps/v1")),
	plain("discovery, all at once", get("/apis", "Accept",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")),
	plain("discovery, version", get("/version")),
	plain("discovery, OpenAPI 3", get("/openapi/v3")),
	plain("who am I", one(http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)),
	plain("what may I", one(http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":`+
			`{"verb":"list","resource":"secrets"}}}`)),
	plain("a token that is none", get(shared+"/configmaps", "Authorization", "Bearer nonsense")),
	plain("no credentials", get(shared+"/configmaps", "Authorization", "")),
	plain("a password", get(shared+"/configmaps", "Authorization", "Basic YTpi")),
	plain("not compressed", get(shared+"/configmaps", "Accept-Encoding", "identity")),
	plain("exec without an upgrade", one(http.MethodPost, shared+"/pods/none/exec?command=true&stdout=true", "")),
	plain("logs of no pod", get(shared+"/pods/none/log")),
	plain("proxy to no pod", get(shared+"/pods/none/proxy/")),
}
