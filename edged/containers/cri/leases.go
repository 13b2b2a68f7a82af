package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Ref is something that containerd's garbage collection keeps if it is referred to.
type Ref struct {
	// Kind is "content" for a blob, and "snapshots/" and the snapshotter for an unpacked layer.
	Kind string
	// ID is the digest of a blob, or the chain ID of a layer.
	ID string
}

// KindContent is the kind of blobs.
const KindContent = "content"

// The labels in which containerd notes what a blob refers to, and how long a lease lasts; see its
// docs/garbage-collection.md.
const (
	labelContent  = "containerd.io/gc.ref.content"
	labelSnapshot = "containerd.io/gc.ref.snapshot."
	labelExpire   = "containerd.io/gc.expire"
)

// maxRefs bounds how many references of a blob are returned: the author of a manifest chooses how many it has.
const maxRefs = 2048

// refsOf returns what a blob with these labels refers to, sorted; of more than maxRefs some are left out. It is pure.
func refsOf(labels map[string]string) []Ref {
	var refs []Ref
	for key, id := range labels {
		if len(refs) == maxRefs {
			break
		}
		if snapshotter, ok := strings.CutPrefix(key, labelSnapshot); ok {
			snapshotter, _, _ = strings.Cut(snapshotter, "/")
			refs = append(refs, Ref{"snapshots/" + snapshotter, id})
			continue
		}
		rest, ok := strings.CutPrefix(key, labelContent)
		if ok && (rest == "" || rest[0] == '.' || rest[0] == '/') {
			refs = append(refs, Ref{KindContent, id})
		}
	}
	smallsort.SortFunc(refs, func(a, b Ref) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return slices.Compact(refs)
}

// Hold adds things to a lease, which protects them and what they refer to from garbage collection until Release, or
// until keep is over. A lease that exists already keeps its contents and its end. A blob need not be there yet.
func (c *Client) Hold(ctx context.Context, lease string, keep time.Duration, refs []Ref) error {
	conn, ctx := c.native(ctx)
	leases := leasesapi.NewLeasesClient(conn)
	if _, err := leases.Create(ctx, &leasesapi.CreateRequest{ID: lease, Labels: map[string]string{
		labelExpire: time.Now().Add(keep).UTC().Format(time.RFC3339),
	}}); err != nil && !isAlreadyThere(err) {
		return err
	}
	for _, ref := range refs {
		if _, err := leases.AddResource(ctx, &leasesapi.AddResourceRequest{
			ID: lease, Resource: &leasesapi.Resource{ID: ref.ID, Type: ref.Kind},
		}); err != nil {
			return fmt.Errorf("keep %s: %w", ref.ID, err)
		}
	}
	return nil
}

// Release ends a lease. It is not an error if the lease is gone.
func (c *Client) Release(ctx context.Context, lease string) error {
	conn, ctx := c.native(ctx)
	_, err := leasesapi.NewLeasesClient(conn).Delete(ctx, &leasesapi.DeleteRequest{ID: lease})
	if IsNotFound(err) {
		return nil
	}
	return err
}
