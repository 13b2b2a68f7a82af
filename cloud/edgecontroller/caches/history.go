package caches

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
)

// historyPeriod is the time between two checks of the API server's resource versions: one small request for each of the
// five cached resources.
const historyPeriod = 30 * time.Second

// onlyMetadata requests a list without the contents of its objects, in any supported version of Kubernetes.
const onlyMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// cachedResource is a resource of the API server and its cache. Versions of different resources do not compare: the API
// server may keep each in its own etcd (--etcd-servers-overrides).
type cachedResource struct {
	name  string
	cache interface{ LastSyncResourceVersion() string }
}

// errRestored reports that a cache is from a history that the API server no longer has.
type errRestored struct {
	resource  string
	seen, now uint64
}

func (e errRestored) Error() string {
	return fmt.Sprintf(
		"the resource version of %s at the API server went back from %d to %d, so its etcd was restored "+
			"from a backup: cloudcore must start again, as its caches would miss changes until that version is reached",
		e.resource, e.seen, e.now)
}

// History notices when the API server's history ends and another one begins.
type History struct {
	Own    kubernetes.Interface
	Caches *Caches
	// Timeout limits the time for one request.
	Timeout time.Duration
}

// WatchHistory returns an error if the version of a cached resource went back at the API server. Restoring etcd from a
// backup does that: watches from before the restore miss all changes until the versions catch up. The caller must exit,
// so that everything is read again. Otherwise WatchHistory returns nil when the context ends.
func (h *History) WatchHistory(ctx context.Context) error {
	tick := time.NewTicker(historyPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := h.checkHistory(ctx, h.Caches.resources()); err != nil {
			return err
		}
	}
}

// checkHistory compares the version of each cache with a later list of the same resource. It stops at the first
// resource that went back. A failed request proves nothing.
func (h *History) checkHistory(ctx context.Context, resources []cachedResource) error {
	for _, r := range resources {
		seen, err := strconv.ParseUint(r.cache.LastSyncResourceVersion(), 10, 64)
		if err != nil {
			continue // nothing is listed yet, or versions are not numbers
		}
		later, err := h.newestVersion(ctx, r.name)
		if err != nil {
			klog.V(2).InfoS("Resource version not read", "resource", r.name, "err", err)
			continue
		}
		if err := compareHistory(r.name, seen, later); err != nil {
			return err
		}
	}
	return nil
}

// newestVersion reads a resource's version at the API server, with a list of at most one object. The list names no
// resourceVersion, so it is current, and no selector, so the API server reads only that object.
func (h *History) newestVersion(ctx context.Context, resource string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	body, err := h.Own.CoreV1().RESTClient().Get().Resource(resource).
		VersionedParams(&metav1.ListOptions{Limit: 1}, scheme.ParameterCodec).
		SetHeader("Accept", onlyMetadata).Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var list struct {
		metav1.ListMeta `json:"metadata"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return "", fmt.Errorf("decode the list of %s: %w", resource, err)
	}
	return list.ResourceVersion, nil
}

// compareHistory compares the newest version seen of a resource with that of a later read. Versions that are not
// numbers do not compare.
func compareHistory(resource string, seen uint64, later string) error {
	now, err := strconv.ParseUint(later, 10, 64)
	if err != nil || now >= seen {
		return nil
	}
	return errRestored{resource: resource, seen: seen, now: now}
}

// resources lists the cached resources.
func (c *Caches) resources() []cachedResource {
	return []cachedResource{
		{"pods", c.Pods},
		{"nodes", c.Nodes},
		{"configmaps", c.ConfigMaps},
		{"secrets", c.Secrets},
		{"services", c.Services},
	}
}
