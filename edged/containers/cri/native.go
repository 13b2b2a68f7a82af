package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// CRI does not say whether an image is whole, nor which blobs it was made of. containerd says both, on the socket that
// serves CRI: these are the few calls of its API that are needed for it. Other runtimes answer Unimplemented; see
// IsUnimplemented.

const (
	namespaceHeader     = "containerd-namespace"
	kubernetesNamespace = "k8s.io"
)

var errAnswer = errors.New("an answer of containerd cannot be read")

// Blob is a piece of content that containerd has, or believes to have.
type Blob struct {
	Digest string
	// Size is what it was when it came.
	Size int64
	// Refs are what it refers to, as containerd's garbage collection knows it, up to 2048.
	Refs []Ref
}

// native is the connection on which images are, and the context for containerd's own calls on it.
func (c *Client) native(ctx context.Context) (*grpc.ClientConn, context.Context) {
	return c.conns[len(c.conns)-1], inNamespace(ctx)
}

// inNamespace is a context for containerd's own calls about what it keeps for CRI.
func inNamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, namespaceHeader, kubernetesNamespace)
}

// ImageTarget returns the digest of the manifest, or list of manifests, that an image's name stands for.
func (c *Client) ImageTarget(ctx context.Context, name string) (string, error) {
	conn, ctx := c.native(ctx)
	answer, err := imagesapi.NewImagesClient(conn).Get(ctx, &imagesapi.GetImageRequest{Name: name})
	if err != nil {
		return "", err
	}
	digest := answer.GetImage().GetTarget().GetDigest()
	if digest == "" {
		return "", fmt.Errorf("%w: image %s has no digest", errAnswer, name)
	}
	return digest, nil
}

// DeleteImage forgets the image of a name; what it consists of is collected if nothing else refers to it. It is not an
// error if the image is gone.
func (c *Client) DeleteImage(ctx context.Context, name string) error {
	conn, ctx := c.native(ctx)
	_, err := imagesapi.NewImagesClient(conn).Delete(ctx, &imagesapi.DeleteImageRequest{Name: name})
	if IsNotFound(err) {
		return nil
	}
	return err
}

// ReadBlob returns the bytes of a blob, as they are on the disk. Its reader has to be closed.
func (c *Client) ReadBlob(ctx context.Context, digest string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	conn, ctx := c.native(ctx)
	s, err := contentapi.NewContentClient(conn).Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
	if err != nil {
		cancel()
		return nil, err
	}
	return &blobReader{stream: s, cancel: cancel}, nil
}

type blobReader struct {
	stream interface {
		Recv() (*contentapi.ReadContentResponse, error)
	}
	cancel context.CancelFunc
	rest   []byte
	err    error
}

func (r *blobReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		var answer *contentapi.ReadContentResponse
		if answer, r.err = r.stream.Recv(); r.err == nil {
			r.rest = answer.GetData() // up to 1 MiB
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	if n == 0 && len(p) > 0 {
		return 0, r.err
	}
	return n, nil
}

func (r *blobReader) Close() error {
	r.cancel()
	return nil
}

// Blobs returns what containerd has, by its own account.
func (c *Client) Blobs(ctx context.Context) ([]Blob, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, ctx := c.native(ctx)
	s, err := contentapi.NewContentClient(conn).List(ctx, &contentapi.ListContentRequest{})
	if err != nil {
		return nil, err
	}
	var all []Blob
	for {
		answer, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		for _, info := range answer.GetInfo() {
			all = append(all, Blob{Digest: info.GetDigest(), Size: info.GetSize(), Refs: refsOf(info.GetLabels())})
		}
	}
}

// DeleteBlob removes a blob from containerd's content store, so that containerd fetches it again when it needs it. The
// next garbage collection removes its bytes.
func (c *Client) DeleteBlob(ctx context.Context, digest string) error {
	conn, ctx := c.native(ctx)
	_, err := contentapi.NewContentClient(conn).Delete(ctx, &contentapi.DeleteContentRequest{Digest: digest})
	return err
}

// CollectGarbage returns when containerd has removed the bytes of what it has forgotten.
func (c *Client) CollectGarbage(ctx context.Context, name string) error {
	conn, ctx := c.native(ctx)
	leases := leasesapi.NewLeasesClient(conn)
	// It does so on demand when a lease ends; this one holds nothing. One that a killed agent left is the same.
	if _, err := leases.Create(ctx, &leasesapi.CreateRequest{ID: name}); err != nil && !isAlreadyThere(err) {
		return err
	}
	_, err := leases.Delete(ctx, &leasesapi.DeleteRequest{ID: name, Sync: true})
	return err
}

// LayerDirs returns the folders of the layers up to the one that chain names, the uppermost first, as an overlay would
// be mounted of them. It makes a snapshot called name and removes it again.
func (c *Client) LayerDirs(ctx context.Context, snapshotter, chain, name string) ([]string, error) {
	conn, ctx := c.native(ctx)
	snapshots := snapshotsapi.NewSnapshotsClient(conn)
	view := &snapshotsapi.ViewSnapshotRequest{Snapshotter: snapshotter, Key: name, Parent: chain}
	remove := &snapshotsapi.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: name}
	answer, err := snapshots.View(ctx, view)
	if isAlreadyThere(err) { // a killed agent left it
		if _, err := snapshots.Remove(ctx, remove); err != nil {
			return nil, err
		}
		answer, err = snapshots.View(ctx, view)
	}
	if err != nil {
		return nil, err
	}
	if _, err := snapshots.Remove(context.WithoutCancel(ctx), remove); err != nil && !IsNotFound(err) {
		return nil, err
	}
	return layers(answer.GetMounts())
}

// layers returns the lower folders of a snapshot's mounts: one bind mount, or one overlay.
func layers(mounts []*types.Mount) ([]string, error) {
	if len(mounts) == 1 {
		m := mounts[0]
		switch m.GetType() {
		case "bind":
			if m.GetSource() != "" {
				return []string{m.GetSource()}, nil
			}
		case "overlay":
			for _, option := range m.GetOptions() {
				if dirs, ok := strings.CutPrefix(option, "lowerdir="); ok && dirs != "" {
					return strings.Split(dirs, ":"), nil
				}
			}
		}
	}
	return nil, fmt.Errorf("%w: the layers are not those of an overlay", errAnswer)
}
