package caches

import (
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

func TestCompareHistory(t *testing.T) {
	for _, tc := range []struct {
		seen  uint64
		later string
		want  error
	}{
		{seen: 10, later: "10"},
		{seen: 10, later: "11"},
		{seen: 0, later: "1"},
		{seen: 10, later: ""},
		{seen: 10, later: "opaque"},
		{seen: 10, later: "9", want: errRestored{resource: "pods", seen: 10, now: 9}},
	} {
		if got := compareHistory("pods", tc.seen, tc.later); !errors.Is(got, tc.want) {
			t.Errorf("compareHistory(pods, %d, %q) = %v, want %v", tc.seen, tc.later, got, tc.want)
		}
	}
}

// lastSeen is the version that a cache has seen.
type lastSeen string

func (v lastSeen) LastSyncResourceVersion() string { return string(v) }

// cachesAt lists the resources of the caches in their order, with the versions that they have seen.
func (w *fixture) cachesAt(versions map[string]string) []cachedResource {
	resources := w.caches.resources()
	for i, r := range resources {
		resources[i].cache = lastSeen(versions[r.name])
	}
	return resources
}

// listAll are the requests of a check.
var listAll = []string{
	"GET /api/v1/pods as cloudcore",
	"GET /api/v1/nodes as cloudcore",
	"GET /api/v1/configmaps as cloudcore",
	"GET /api/v1/secrets as cloudcore",
	"GET /api/v1/services as cloudcore",
}

// TestCheckHistory: each cache is compared with a list of its own resource, as the API server may keep resources in
// different etcds.
func TestCheckHistory(t *testing.T) {
	seen := map[string]string{"pods": "10", "nodes": "2000", "configmaps": "10", "secrets": "10", "services": "10"}
	for name, tc := range map[string]struct {
		seen, now map[string]string
		want      error
		Requests  []string
	}{
		"nothing has changed": {seen: seen, now: seen, Requests: listAll},
		"all have newer versions": {
			seen: seen,
			now: map[string]string{
				"pods": "11", "nodes": "2001", "configmaps": "11", "secrets": "11", "services": "11",
			},
			Requests: listAll,
		},
		"pods went back": {
			seen: seen,
			now: map[string]string{
				"pods": "9", "nodes": "2000", "configmaps": "10", "secrets": "10", "services": "10",
			},
			want:     errRestored{resource: "pods", seen: 10, now: 9},
			Requests: listAll[:1],
		},
		"secrets went back": {
			seen: seen,
			now: map[string]string{
				"pods": "10", "nodes": "2000", "configmaps": "10", "secrets": "9", "services": "10",
			},
			want:     errRestored{resource: "secrets", seen: 10, now: 9},
			Requests: listAll[:4],
		},
		"a list without a version":   {seen: seen, now: map[string]string{}, Requests: listAll},
		"no cache has seen anything": {seen: map[string]string{}, now: seen},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.api.Answer(func(r fakes.Call) (int, any) {
				for resource, version := range tc.now {
					if r.Path == "/api/v1/"+resource {
						return 200, metav1.PartialObjectMetadataList{
							ListMeta: metav1.ListMeta{ResourceVersion: version},
						}
					}
				}
				return 200, metav1.PartialObjectMetadataList{}
			})
			if got := w.checkHistory(t.Context(), w.cachesAt(tc.seen)); !errors.Is(got, tc.want) {
				t.Errorf("checkHistory = %v, want %v", got, tc.want)
			}
			if got := w.api.Seen(); !slices.Equal(got, tc.Requests) {
				t.Errorf("requests = %v, want %v", got, tc.Requests)
			}
		})
	}
}

// A request that fails, as while the API server is restored, proves nothing, and the other resources are still checked.
func TestHistoryUnread(t *testing.T) {
	w := newFixture(t)
	w.api.Answer(func(fakes.Call) (int, any) { return 500, "x" })
	seen := map[string]string{"pods": "1", "nodes": "1", "configmaps": "1", "secrets": "1", "services": "1"}
	if err := w.checkHistory(t.Context(), w.cachesAt(seen)); err != nil {
		t.Errorf("checkHistory while the API server fails = %v, want nil", err)
	}
	if got := w.api.Seen(); !slices.Equal(got, listAll) {
		t.Errorf("requests = %v, want %v", got, listAll)
	}
}
