package cri

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Holding is what a lease of containerd keeps from its garbage collection.
type Holding struct {
	// Blobs are digests.
	Blobs     []string
	Snapshots []Snapshot
}

// ErrRemoved is an error of ReplaceBlob after it has removed the damaged blob.
var ErrRemoved = errors.New("the damaged blob is removed, and the new one is not in its place")

const (
	leaseHeader = "containerd-lease"
	// expireLabel says when containerd ignores a lease; see its docs/garbage-collection.md.
	expireLabel = "containerd.io/gc.expire"
	// flatLabel: a lease keeps what it names, and not what that refers to, which may be damaged.
	flatLabel = "containerd.io/gc.flat"
)

// Hold keeps blobs and layers until Release, or for a time if the agent is killed before. The name must be new.
func (c *Client) Hold(ctx context.Context, name string, keep time.Duration, what Holding) error {
	conn, native := c.native(ctx)
	leases := leasesapi.NewLeasesClient(conn)
	if _, err := leases.Create(native, &leasesapi.CreateRequest{ID: name, Labels: map[string]string{
		expireLabel: time.Now().Add(keep).UTC().Format(time.RFC3339), flatLabel: "true",
	}}); err != nil {
		return err
	}
	resources := make([]*leasesapi.Resource, 0, len(what.Blobs)+len(what.Snapshots))
	for _, digest := range what.Blobs {
		resources = append(resources, &leasesapi.Resource{ID: digest, Type: "content"})
	}
	for _, s := range what.Snapshots {
		resources = append(resources, &leasesapi.Resource{ID: s.Chain, Type: "snapshots/" + s.Snapshotter})
	}
	for _, resource := range resources {
		add := &leasesapi.AddResourceRequest{ID: name, Resource: resource}
		if _, err := leases.AddResource(native, add); err != nil {
			return errors.Join(err, c.Release(context.WithoutCancel(ctx), name))
		}
	}
	return nil
}

// Release ends a Hold. It is not an error if the lease is gone.
func (c *Client) Release(ctx context.Context, name string) error {
	conn, ctx := c.native(ctx)
	_, err := leasesapi.NewLeasesClient(conn).Delete(ctx, &leasesapi.DeleteRequest{ID: name})
	if IsNotFound(err) {
		return nil
	}
	return err
}

// chunk is how much of a blob goes to containerd in one message, which may have 16 MiB.
const chunk = 512 << 10

// ReplaceBlob reads a blob from r and gives it to containerd, in place of a damaged one if there is one. The damaged
// one is removed only when the whole blob is on the device and has its digest. References to the blob, and those in its
// labels, stay as they were. The lease of a Hold keeps what has come of the blob, and the blob if nothing refers to it.
func (c *Client) ReplaceBlob(ctx context.Context, lease, digest string, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	conn, native := c.native(ctx)
	store, ref := contentapi.NewContentClient(conn), lease+"-"+digest
	leased := metadata.AppendToOutgoingContext(native, leaseHeader, lease)
	stream, err := store.Write(leased)
	if err != nil {
		return err
	}
	size, err := upload(stream, ref, digest, r)
	if err == nil {
		err = c.replace(ctx, lease, digest, func(labels map[string]string) error {
			_, err := send(stream, &contentapi.WriteContentRequest{
				Action:   contentapi.WriteAction_COMMIT,
				Ref:      ref,
				Offset:   size,
				Total:    size,
				Expected: digest,
				Labels:   labels,
			})
			return err
		})
	}
	if err == nil {
		return nil
	}
	cancel() // containerd unlocks what was written
	abort := context.WithoutCancel(leased)
	if _, abortErr := store.Abort(abort, &contentapi.AbortRequest{Ref: ref}); !IsNotFound(abortErr) {
		// The end of the lease removes it otherwise.
		err = errors.Join(err, abortErr)
	}
	return err
}

// upload writes a blob to containerd, but does not have it take the place of another one. It returns its size, and an
// error if it does not have the digest.
func upload(
	stream grpc.BidiStreamingClient[contentapi.WriteContentRequest, contentapi.WriteContentResponse],
	ref, digest string, r io.Reader,
) (int64, error) {
	// containerd would answer at once that it has the blob if it were told the digest here.
	sum, buffer := sha256.New(), make([]byte, chunk)
	var size int64
	for {
		n, err := io.ReadFull(r, buffer)
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return 0, err
		}
		if n > 0 || size == 0 {
			sum.Write(buffer[:n])
			answer, err := send(stream, &contentapi.WriteContentRequest{
				Action: contentapi.WriteAction_WRITE, Ref: ref, Offset: size, Data: buffer[:n],
			})
			if err != nil {
				return 0, err
			}
			if size += int64(n); answer.GetOffset() != size {
				return 0, fmt.Errorf("%w: it has %d bytes of a blob, want %d", errAnswer, answer.GetOffset(), size)
			}
		}
		if !end {
			continue
		}
		if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
			return 0, fmt.Errorf("the %d bytes that came for blob %s have the digest %s", size, digest, got)
		}
		return size, nil
	}
}

func send(
	stream grpc.BidiStreamingClient[contentapi.WriteContentRequest, contentapi.WriteContentResponse],
	request *contentapi.WriteContentRequest,
) (*contentapi.WriteContentResponse, error) {
	// What was wrong is in the answer, and not in the error of Send.
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream.Recv()
}

// replace removes a blob and has put, which gets its labels, put another one in its place.
func (c *Client) replace(
	ctx context.Context, lease, digest string, put func(labels map[string]string) error,
) error {
	conn, native := c.native(ctx)
	answer, err := contentapi.NewContentClient(conn).Info(native, &contentapi.InfoRequest{Digest: digest})
	switch {
	case IsNotFound(err):
		return put(nil)
	case err != nil:
		return err
	}
	if err := c.DeleteBlob(ctx, digest); err != nil && !IsNotFound(err) {
		return err
	}
	// containerd takes the damaged bytes for the blob for as long as they are there.
	if err := c.CollectGarbage(ctx, lease+"-collect"); err != nil {
		return errors.Join(ErrRemoved, err)
	}
	if err := put(answer.GetInfo().GetLabels()); err != nil {
		return errors.Join(ErrRemoved, err)
	}
	return nil
}

// RemoveLayers removes unpacked layers, which are named by their chains, the uppermost first, so that containerd
// unpacks them again from their blobs. It stops at the first on which a container or another layer is, and returns how
// many it removed.
func (c *Client) RemoveLayers(ctx context.Context, snapshotter string, chains []string) (int, error) {
	conn, ctx := c.native(ctx)
	snapshots, removed := snapshotsapi.NewSnapshotsClient(conn), 0
	for _, chain := range chains {
		_, err := snapshots.Remove(ctx, &snapshotsapi.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: chain})
		switch {
		case status.Code(err) == codes.FailedPrecondition: // it has children
			return removed, nil
		case err == nil:
			removed++
		case !IsNotFound(err):
			return removed, err
		}
	}
	return removed, nil
}
