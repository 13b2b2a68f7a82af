package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// CRI cannot tell whether an image is whole, and the blobs of which it was made may be on the device. containerd tells both, on
// the socket that serves CRI: these are the few calls of its API (containerd/api, services/{content,images,leases,snapshots}/v1)
// that are needed for it, without its library. Other runtimes answer Unimplemented; see IsUnimplemented.

const (
	contentService   = "/containerd.services.content.v1.Content/"
	imagesService    = "/containerd.services.images.v1.Images/"
	leasesService    = "/containerd.services.leases.v1.Leases/"
	snapshotsService = "/containerd.services.snapshots.v1.Snapshots/"
)

var errAnswer = errors.New("an answer of containerd cannot be read")

// Blob is a piece of content that containerd has, or believes to have.
type Blob struct {
	Digest string
	// Size is what it was when it came.
	Size int64
}

// native is the connection on which images are, and the context for containerd's own calls on it.
func (c *Client) native(ctx context.Context) (*grpc.ClientConn, context.Context) {
	return c.conns[len(c.conns)-1], metadata.AppendToOutgoingContext(ctx, namespaceHeader, kubernetesNamespace)
}

// text appends a string field to a message.
func text(message []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, field, protowire.BytesType), value)
}

// raw is a message of these bytes: all of its fields are unknown to Empty, which keeps them.
func raw(message []byte) *emptypb.Empty {
	var m emptypb.Empty
	m.ProtoReflect().SetUnknown(message)
	return &m
}

func (c *Client) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	conn, ctx := c.native(ctx)
	var answer emptypb.Empty
	if err := conn.Invoke(ctx, method, raw(request), &answer); err != nil {
		return nil, err
	}
	return answer.ProtoReflect().GetUnknown(), nil
}

// stream calls a method with many answers; it ends with ctx.
func (c *Client) stream(ctx context.Context, method string, request []byte) (grpc.ClientStream, error) {
	conn, ctx := c.native(ctx)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := s.SendMsg(raw(request)); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s, s.CloseSend()
}

// ImageTarget returns the digest of the manifest, or list of manifests, that an image's name stands for.
func (c *Client) ImageTarget(ctx context.Context, name string) (string, error) {
	answer, err := c.call(ctx, imagesService+"Get", text(nil, 1, name))
	if err != nil {
		return "", err
	}
	digest, err := decodeTarget(answer)
	if err == nil && digest == "" {
		err = fmt.Errorf("%w: image %s has no digest", errAnswer, name)
	}
	return digest, err
}

// decodeTarget reads image.target.digest of a GetImageResponse.
func decodeTarget(data []byte) (digest string, err error) {
	return at(data, 1, 3, 2)
}

// at returns the string at a path of fields, "" where there is none.
func at(data []byte, path ...protowire.Number) (value string, err error) {
	err = fields(data, func(field protowire.Number, _ uint64, inner []byte) error {
		if field != path[0] {
			return nil
		}
		if len(path) == 1 {
			value = string(inner)
			return nil
		}
		found, err := at(inner, path[1:]...)
		if found != "" {
			value = found
		}
		return err
	})
	return value, err
}

// ReadBlob returns the bytes of a blob, as they are on the disk. Its reader has to be closed.
func (c *Client) ReadBlob(ctx context.Context, digest string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := c.stream(ctx, contentService+"Read", text(nil, 1, digest))
	if err != nil {
		cancel()
		return nil, err
	}
	return &blobReader{stream: s, cancel: cancel}, nil
}

type blobReader struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	rest   []byte
	err    error
}

func (r *blobReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		var m emptypb.Empty
		if r.err = r.stream.RecvMsg(&m); r.err != nil {
			break
		}
		r.rest, r.err = decodeData(m.ProtoReflect().GetUnknown())
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

// decodeData reads the data of a ReadContentResponse.
func decodeData(message []byte) (data []byte, err error) {
	err = fields(message, func(field protowire.Number, _ uint64, value []byte) error {
		switch {
		case field != 2:
		case data == nil:
			data = value // up to 1 MiB, and the rule
		default:
			data = append(data, value...)
		}
		return nil
	})
	return data, err
}

// Blobs returns what containerd has, by its own account.
func (c *Client) Blobs(ctx context.Context) ([]Blob, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.stream(ctx, contentService+"List", nil)
	if err != nil {
		return nil, err
	}
	var all []Blob
	for {
		var m emptypb.Empty
		err := s.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		more, err := decodeBlobs(m.ProtoReflect().GetUnknown())
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
}

// decodeBlobs reads a ListContentResponse.
func decodeBlobs(data []byte) ([]Blob, error) {
	var list []Blob
	err := fields(data, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		var b Blob
		err := fields(value, func(field protowire.Number, number uint64, value []byte) error {
			switch field {
			case 1:
				b.Digest = string(value)
			case 2:
				b.Size = int64(number)
			}
			return nil
		})
		list = append(list, b)
		return err
	})
	return list, err
}

// DeleteBlob has containerd forget a blob, so that it fetches it again when it is asked for. The bytes go with the next garbage.
func (c *Client) DeleteBlob(ctx context.Context, digest string) error {
	_, err := c.call(ctx, contentService+"Delete", text(nil, 1, digest))
	return err
}

// CollectGarbage returns when containerd has removed the bytes of what it has forgotten.
func (c *Client) CollectGarbage(ctx context.Context, name string) error {
	// It does so on demand when a lease ends; this one holds nothing. One that a killed agent left is the same.
	if _, err := c.call(ctx, leasesService+"Create", text(nil, 1, name)); err != nil && !isAlreadyThere(err) {
		return err
	}
	end := protowire.AppendVarint(protowire.AppendTag(text(nil, 1, name), 2, protowire.VarintType), 1)
	_, err := c.call(ctx, leasesService+"Delete", end)
	return err
}

// LayerDirs returns the folders of the layers up to the one that chain names, the uppermost first, as an overlay would be
// mounted of them. name is that of a snapshot which is there for a moment.
func (c *Client) LayerDirs(ctx context.Context, snapshotter, chain, name string) ([]string, error) {
	view := text(text(text(nil, 1, snapshotter), 2, name), 3, chain)
	remove := text(text(nil, 1, snapshotter), 2, name)
	answer, err := c.call(ctx, snapshotsService+"View", view)
	if isAlreadyThere(err) { // a killed agent left it
		if _, err := c.call(ctx, snapshotsService+"Remove", remove); err != nil {
			return nil, err
		}
		answer, err = c.call(ctx, snapshotsService+"View", view)
	}
	if err != nil {
		return nil, err
	}
	if _, err := c.call(context.WithoutCancel(ctx), snapshotsService+"Remove", remove); err != nil && !IsNotFound(err) {
		return nil, err
	}
	return decodeLayers(answer)
}

// decodeLayers reads the lower folders out of a ViewSnapshotResponse: one bind mount, or one overlay.
func decodeLayers(data []byte) ([]string, error) {
	var dirs []string
	mounts := 0
	err := fields(data, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		mounts++
		var kind, source, lower string
		err := fields(value, func(field protowire.Number, _ uint64, value []byte) error {
			switch field {
			case 1:
				kind = string(value)
			case 2:
				source = string(value)
			case 4:
				if list, ok := strings.CutPrefix(string(value), "lowerdir="); ok {
					lower = list
				}
			}
			return nil
		})
		switch {
		case kind == "bind" && source != "":
			dirs = append(dirs, source)
		case kind == "overlay" && lower != "":
			dirs = append(dirs, strings.Split(lower, ":")...)
		}
		return err
	})
	if err == nil && (mounts != 1 || len(dirs) == 0) {
		err = fmt.Errorf("%w: the layers are not those of an overlay", errAnswer)
	}
	return dirs, err
}
