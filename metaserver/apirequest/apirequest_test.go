package apirequest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestParse has the cases of kube-apiserver's own test of RequestInfo, and those that the endpoint depends on.
func TestParse(t *testing.T) {
	for _, tc := range []struct {
		method, url string
		want        Info
		shown       string
	}{
		{"GET", "/api/v1/namespaces", res("list", "", "namespaces"), "namespaces"},
		{"GET", "/api/v1/namespaces/other", res("get", "", "namespaces", "other", "other"), "namespaces other"},
		{"PUT", "/api/v1/namespaces/other/finalize", Info{
			Verb: "update", IsResource: true, Version: "v1", Resource: "namespaces", Namespace: "other", Name: "other",
			Subresource: "finalize",
		}, "namespaces/finalize other"},
		{"GET", "/api/v1/namespaces/other/pods", res("list", "", "pods", "other"), "pods in other"},
		{"HEAD", "/api/v1/namespaces/other/pods", res("list", "", "pods", "other"), "pods in other"},
		{"GET", "/api/v1/namespaces/other/pods/foo", res("get", "", "pods", "other", "foo"), "pods other/foo"},
		{"GET", "/api/v1/pods", res("list", "", "pods"), "pods"},
		{"GET", "/api/v1/pods?watch=1", res("watch", "", "pods"), "pods"},
		{"GET", "/api/v1/pods?watch=", res("watch", "", "pods"), "pods"},
		{"GET", "/api/v1/pods?watch=FALSE", res("list", "", "pods"), "pods"},
		{"GET", "/api/v1/pods?watch=0&watch=1", res("list", "", "pods"), "pods"},
		{"GET", "/api/v1/watch/namespaces/other/pods", res("watch", "", "pods", "other"), "pods in other"},
		{"GET", "/api/v1/watch", Info{Verb: "get"}, "/api/v1/watch"},
		{"GET", "/api/v1/proxy/namespaces/other/pods/foo/x", res("proxy", "", "pods", "other", "foo"),
			"pods other/foo"},
		{"GET", "/api/v1/namespaces/other/pods/foo?watch=1", res("get", "", "pods", "other", "foo"), "pods other/foo"},
		{"GET", "/api/v1/namespaces/other/pods?fieldSelector=metadata.name%3Dfoo&watch=true",
			res("watch", "", "pods", "other", "foo"), "pods other/foo"},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%3Da%2Fb", res("list", "", "nodes"), "nodes"},
		{"GET", "/api/v1/nodes?fieldSelector=%21%21", res("list", "", "nodes"), "nodes"},
		{"DELETE", "/api/v1/namespaces/other/pods", res("deletecollection", "", "pods", "other"), "pods in other"},
		{"DELETE", "/api/v1/namespaces/other/pods/foo", res("delete", "", "pods", "other", "foo"), "pods other/foo"},
		{"POST", "/apis/apps/v1/namespaces/shop/deployments", res("create", "apps", "deployments", "shop"),
			"deployments.apps in shop"},
		{"PATCH", "/apis/apps/v1/namespaces/shop/deployments/web", res("patch", "apps", "deployments", "shop", "web"),
			"deployments.apps shop/web"},
		{"GET", "/apis/apps/v1", Info{Verb: "get"}, "/apis/apps/v1"},
		{"GET", "/api/v1", Info{Verb: "get"}, "/api/v1"},
		{"GET", "/version", Info{Verb: "get"}, "/version"},
		{"POST", "/", Info{Verb: "post"}, "/"},
		{"GET", "/apiserver/v1/pods/a", Info{Verb: "get"}, "/apiserver/v1/pods/a"},
		{"TRACE", "/api/v1/pods", res("", "", "pods"), "pods"},
		{"GET", "/api/v1/namespaces/shop/pods/web/log?follow=true", Info{
			Verb: "get", IsResource: true, Version: "v1", Resource: "pods", Namespace: "shop", Name: "web",
			Subresource: "log", Follow: true,
		}, "pods/log shop/web"},
	} {
		r := httptest.NewRequest(tc.method, tc.url, nil)
		got := Of(r)
		if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(Info{}, "Path")); diff != "" {
			t.Errorf("%s %s mismatch (-want +got):\n%s", tc.method, tc.url, diff)
		}
		if got := got.String(); got != tc.shown {
			t.Errorf("%s %s is shown as %q, want %q", tc.method, tc.url, got, tc.shown)
		}
	}
}

// res is the reading of a request for a resource of version v1, then optionally namespace and name.
func res(verb, group, resource string, rest ...string) Info {
	info := Info{
		Verb:       verb,
		IsResource: true,
		Group:      group,
		Version:    "v1",
		Resource:   resource,
	}
	if len(rest) > 0 {
		info.Namespace = rest[0]
	}
	if len(rest) > 1 {
		info.Name = rest[1]
	}
	return info
}

func TestKindsOfRequests(t *testing.T) {
	for _, tc := range []struct {
		method, url, upgrade string
		read, long           bool
	}{
		{"GET", "/api/v1/pods", "", true, false},
		{"GET", "/api/v1/pods?watch=1", "", true, true},
		{"GET", "/version", "", true, false},
		{"POST", "/api/v1/namespaces/a/pods", "", false, false},
		{"DELETE", "/api/v1/namespaces/a/pods/b", "", false, false},
		{"TRACE", "/api/v1/pods", "", false, false},
		{"GET", "/api/v1/namespaces/a/pods/b/log", "", true, false},
		{"GET", "/api/v1/namespaces/a/pods/b/log?follow=1", "", true, true},
		{"GET", "/api/v1/namespaces/a/pods/b/exec", "websocket", false, true},
		{"POST", "/api/v1/namespaces/a/pods/b/exec", "SPDY/3.1", false, true},
		{"GET", "/api/v1/namespaces/a/services/b/proxy/x", "", true, true},
	} {
		r := httptest.NewRequest(tc.method, tc.url, nil)
		if tc.upgrade != "" {
			r.Header = http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {tc.upgrade}}
		}
		info := Of(r)
		if info.IsRead() != tc.read || info.IsLong() != tc.long || info.IsUpgrade != (tc.upgrade != "") {
			t.Errorf("%s %s upgrade %q: read %v, long %v, upgrade %v; want %v, %v, %v", tc.method, tc.url, tc.upgrade,
				info.IsRead(), info.IsLong(), info.IsUpgrade, tc.read, tc.long, tc.upgrade != "")
		}
	}
	upgradeAlone := httptest.NewRequest("GET", "/api/v1/pods", nil)
	upgradeAlone.Header.Set("Upgrade", "websocket")
	if info := Of(upgradeAlone); info.IsUpgrade {
		t.Error("a request with Upgrade but without Connection: Upgrade is an upgrade, want none")
	}
}

// TestShownIsBounded: what a hostile client writes into a path does not fill logs.
func TestShownIsBounded(t *testing.T) {
	r := httptest.NewRequest("GET", "/api/v1/namespaces/"+strings.Repeat("x", 5000)+"/pods", nil)
	info := Of(r)
	if got := info.String(); len(got) > maxShown+len("...") {
		t.Errorf("shown with %d bytes, want at most %d", len(got), maxShown+len("..."))
	}
}

func FuzzParse(f *testing.F) {
	f.Add("GET", "/api/v1/watch/namespaces/a/pods?watch=1")
	f.Add("PUT", "/apis//v1/namespaces///x")
	f.Fuzz(func(t *testing.T, method, url string) {
		r, err := http.NewRequest(method, url, nil)
		if err != nil {
			return
		}
		info := Of(r)
		if info.IsResource && info.Resource == "" && strings.Trim(r.URL.Path, "/") == r.URL.Path[1:] {
			// An empty part in the middle of a path is an empty resource for kube-apiserver, too.
			if !strings.Contains(r.URL.Path, "//") {
				t.Errorf("%s %s: %+v, want a resource", method, url, info)
			}
		}
		_ = info.String()
	})
}
