package edgeapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/edgeapi/twin"
)

// fault is a mistake that an endpoint in front of kube-apiserver can make.
type fault struct {
	name string
	// kind is a kind of request that has to show it.
	kind string
	// request changes what kube-apiserver is sent.
	request func(*http.Request)
	// answer changes what it answers.
	answer func(*http.Response)
	// body changes the decoded JSON of an answer.
	body func(map[string]any)
}

func without(keys ...string) func(*http.Request) {
	return func(r *http.Request) {
		q := r.URL.Query()
		for _, key := range keys {
			q.Del(key)
		}
		r.URL.RawQuery = q.Encode()
	}
}

func header(key, value string) func(*http.Request) {
	return func(r *http.Request) {
		if r.Header.Get(key) != "" {
			r.Header.Set(key, value)
		}
	}
}

func status(from, to int) func(*http.Response) {
	return func(r *http.Response) {
		if r.StatusCode == from {
			r.StatusCode = to
		}
	}
}

func inMetadata(key string) func(map[string]any) {
	return func(object map[string]any) {
		if meta, ok := object["metadata"].(map[string]any); ok {
			delete(meta, key)
		}
	}
}

var faults = []fault{
	{name: "selectors are dropped", kind: "list, labels", request: without("labelSelector")},
	{name: "field selectors are dropped", kind: "list, fields", request: without("fieldSelector")},
	{name: "limits are dropped", kind: "list, pages", request: without("limit")},
	{name: "versions are dropped", kind: "list, versions", request: without("resourceVersion")},
	{name: "matches are dropped", kind: "list, versions", request: without("resourceVersionMatch")},
	{name: "a continuation is dropped", kind: "list, a continuation that is none", request: without("continue")},
	{name: "initial events are not asked for", kind: "watch, initial events", request: without("sendInitialEvents")},
	{name: "bookmarks are not sent", kind: "watch, initial events", request: without("allowWatchBookmarks")},
	{name: "a watch becomes a list", kind: "watch, from the beginning", request: without("watch")},
	{name: "dry runs are done", kind: "create, dry run", request: without("dryRun")},
	{name: "validation is dropped", kind: "create, unknown fields", request: without("fieldValidation")},
	{name: "managers are dropped", kind: "apply", request: without("fieldManager")},
	{name: "force is dropped", kind: "apply", request: without("force")},
	{name: "policies are dropped", kind: "delete, a policy that nobody has", request: without("propagationPolicy")},
	{name: "tables are not asked for", kind: "list, Table", request: header("Accept", "application/json")},
	{name: "protobuf is not asked for", kind: "get, protobuf", request: header("Accept", "application/json")},
	{name: "the type of a body is lost", kind: "patch, merge", request: header("Content-Type", "application/json")},
	{name: "impersonation is dropped", kind: "impersonation", request: func(r *http.Request) {
		r.Header.Del("Impersonate-User")
	}},
	{name: "a token is replaced", kind: "a token that is none", request: func(r *http.Request) {
		r.Header.Set("Authorization", r.Header.Get("X-Token"))
	}},
	{name: "paths are cleaned", kind: "a path with dots", request: func(r *http.Request) {
		r.URL.Path, r.URL.RawPath = path.Clean(r.URL.Path), ""
	}},
	{name: "methods become another", kind: "update", request: func(r *http.Request) {
		if r.Method == http.MethodPut {
			r.Method = http.MethodPost
		}
	}},
	{name: "bodies of deletions are lost", kind: "delete, preconditions", request: func(r *http.Request) {
		if r.Method == http.MethodDelete && r.Body != nil {
			r.Body, r.ContentLength = http.NoBody, 0
		}
	}},
	{name: "not found becomes forbidden", kind: "get, none", answer: status(404, 403)},
	{name: "forbidden becomes unavailable", kind: "forbidden, list", answer: status(403, 503)},
	{name: "a conflict becomes an error", kind: "create, twice", answer: status(409, 500)},
	{name: "unauthorized becomes forbidden", kind: "a token that is none", answer: status(401, 403)},
	{name: "created becomes OK", kind: "create", answer: status(201, 200)},
	{name: "warnings are lost", kind: "create, unknown fields", answer: func(r *http.Response) {
		r.Header.Del("Warning")
	}},
	{name: "types of answers are lost", kind: "get, YAML", answer: func(r *http.Response) {
		r.Header.Set("Content-Type", "application/octet-stream")
	}},
	{name: "answers end early", kind: "get, protobuf", answer: func(r *http.Response) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/vnd") {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(r.Body, 20), r.Body}
			r.ContentLength = -1
			r.Header.Del("Content-Length")
		}
	}},
	{name: "the last object of lists is lost", kind: "list", body: func(object map[string]any) {
		if items, ok := object["items"].([]any); ok && len(items) > 0 {
			object["items"] = items[:len(items)-1]
		}
	}},
	{name: "lists have no version", kind: "list", body: inMetadata("resourceVersion")},
	{name: "objects have no UID", kind: "get", body: inMetadata("uid")},
	{name: "lists have no continuation", kind: "list, pages", body: inMetadata("continue")},
	{name: "labels are lost", kind: "get", body: inMetadata("labels")},
	{name: "fields' managers are lost", kind: "get", body: inMetadata("managedFields")},
	{name: "the kind is lost", kind: "get", body: func(object map[string]any) { delete(object, "kind") }},
	{name: "causes of errors are lost", kind: "create, invalid", body: func(object map[string]any) {
		delete(object, "details")
	}},
	{name: "words of errors are lost", kind: "get, none", body: func(object map[string]any) {
		delete(object, "message")
	}},
	{name: "rows of tables are lost", kind: "list, Table", body: func(object map[string]any) {
		delete(object, "rows")
	}},
}

// plant starts a server that makes a mistake in front of kube-apiserver.
func plant(t *testing.T, cluster twin.Side, f fault) twin.Side {
	t.Helper()
	target, err := url.Parse(cluster.URL)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1,
		Transport:     cluster.Client.Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("X-Token", "Bearer "+cluster.Token)
			if f.body != nil {
				r.Out.Header.Set("Accept-Encoding", "identity")
			}
			if f.request != nil {
				f.request(r.Out)
			}
			r.Out.Header.Del("X-Token")
		},
		ModifyResponse: func(r *http.Response) error {
			if f.answer != nil {
				f.answer(r)
			}
			if f.body != nil && strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") &&
				r.Request.URL.Query().Get("watch") == "" {
				return change(r, f.body)
			}
			return nil
		},
	})
	t.Cleanup(server.Close)
	return twin.Side{
		Name:      "planted",
		URL:       server.URL,
		Namespace: "twin-b",
		Token:     cluster.Token,
		Client:    server.Client(),
	}
}

// change decodes an answer, changes it and encodes it.
func change(r *http.Response, f func(map[string]any)) error {
	defer r.Body.Close()
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(r.Body); err != nil {
			return err
		}
		r.Header.Del("Content-Encoding")
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var object map[string]any
	if json.Unmarshal(data, &object) == nil {
		f(object)
		if data, err = json.Marshal(object); err != nil {
			return err
		}
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Del("Content-Length")
	return nil
}
