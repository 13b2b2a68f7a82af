package cri

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// containerd answers as containerd does, and notes what is changed. Each service is a type of its own, because some of
// their methods share a name.
type containerd struct {
	content   content
	images    images
	leases    leases
	snapshots snapshots
	changes   []string
}

type (
	content struct {
		contentapi.UnimplementedContentServer
		of *containerd
		// labels are those of the blob of the digest that is asked for; nil: there is none.
		labels map[string]string
		// failing: no blob is committed.
		failing bool
	}
	images struct {
		imagesapi.UnimplementedImagesServer
	}
	leases struct {
		leasesapi.UnimplementedLeasesServer
		of *containerd
	}
	snapshots struct {
		snapshotsapi.UnimplementedSnapshotsServer
		of     *containerd
		exists bool
		// inUse is a snapshot that cannot be removed, gone one that is not there.
		inUse, gone string
		mounts      []*types.Mount
	}
)

func (*content) ListStatuses(
	context.Context, *contentapi.ListStatusesRequest,
) (*contentapi.ListStatusesResponse, error) {
	return &contentapi.ListStatusesResponse{Statuses: []*contentapi.Status{
		{Ref: "layer-sha256:a", Offset: 17, Total: 100}, {Ref: "config-sha256:b"},
	}}, nil
}

func (*content) Read(r *contentapi.ReadContentRequest, s contentapi.Content_ReadServer) error {
	if r.Digest != "sha256:a" {
		return status.Error(codes.NotFound, "no such blob")
	}
	for _, data := range []string{"hello", "", " fixture"} {
		if err := s.Send(&contentapi.ReadContentResponse{Data: []byte(data)}); err != nil {
			return err
		}
	}
	return nil
}

func (*content) List(_ *contentapi.ListContentRequest, s contentapi.Content_ListServer) error {
	for _, info := range []*contentapi.Info{
		{Digest: "sha256:a", Size: 17, Labels: map[string]string{
			"containerd.io/gc.ref.content.l.0":                   "sha256:l",
			"containerd.io/gc.ref.content.config":                "sha256:c",
			"containerd.io/gc.ref.snapshot.overlayfs":            "sha256:chain",
			"containerd.io/distribution.source.registry.example": "app",
		}},
		{Digest: "sha256:b"},
	} {
		if err := s.Send(&contentapi.ListContentResponse{Info: []*contentapi.Info{info}}); err != nil {
			return err
		}
	}
	return nil
}

func (c *content) Delete(_ context.Context, r *contentapi.DeleteContentRequest) (*emptypb.Empty, error) {
	c.of.changes = append(c.of.changes, "delete "+r.Digest)
	return &emptypb.Empty{}, nil
}

func (c *content) Info(_ context.Context, r *contentapi.InfoRequest) (*contentapi.InfoResponse, error) {
	if c.labels == nil {
		return nil, status.Error(codes.NotFound, "no such blob")
	}
	return &contentapi.InfoResponse{Info: &contentapi.Info{Digest: r.Digest, Labels: c.labels}}, nil
}

func (c *content) Abort(_ context.Context, r *contentapi.AbortRequest) (*emptypb.Empty, error) {
	c.of.changes = append(c.of.changes, "abort "+r.Ref)
	return &emptypb.Empty{}, nil
}

func (c *content) Write(s contentapi.Content_WriteServer) error {
	lease := strings.Join(metadata.ValueFromIncomingContext(s.Context(), "containerd-lease"), ", ")
	var offset int64
	for {
		r, err := s.Recv()
		if err != nil {
			return nil // the client has enough
		}
		if r.Offset != offset {
			return status.Errorf(codes.OutOfRange, "offset %d, want %d", r.Offset, offset)
		}
		offset += int64(len(r.Data))
		if r.Action == contentapi.WriteAction_COMMIT {
			if c.failing {
				return status.Error(codes.Internal, "no space left on device")
			}
			c.of.changes = append(c.of.changes, fmt.Sprintf("commit %d bytes as %s with %v for lease %s", r.Total,
				r.Expected[:10], r.Labels, lease))
		} else if r.Expected != "" {
			return status.Error(codes.AlreadyExists, "want no digest before the commit")
		}
		if err := s.Send(&contentapi.WriteContentResponse{Action: r.Action, Offset: offset}); err != nil {
			return err
		}
	}
}

func (*images) Get(_ context.Context, r *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	answer := &imagesapi.GetImageResponse{
		Image: &imagesapi.Image{Name: r.Name, Target: &types.Descriptor{Digest: "sha256:a"}},
	}
	if r.Name == "bare" {
		answer.Image.Target = nil
	}
	return answer, nil
}

func (l *leases) Create(_ context.Context, r *leasesapi.CreateRequest) (*leasesapi.CreateResponse, error) {
	l.of.changes = append(l.of.changes, "create lease "+r.ID)
	if len(r.Labels) == 0 {
		return nil, status.Error(codes.AlreadyExists, "left by a killed agent")
	}
	until, err := time.Parse(time.RFC3339, r.Labels["containerd.io/gc.expire"])
	if left := time.Until(until); err != nil || left < 59*time.Minute || left > time.Hour {
		return nil, status.Errorf(codes.InvalidArgument, "it expires in %v, want an hour", left)
	}
	return &leasesapi.CreateResponse{}, nil
}

func (l *leases) AddResource(_ context.Context, r *leasesapi.AddResourceRequest) (*emptypb.Empty, error) {
	l.of.changes = append(l.of.changes, strings.Join([]string{r.ID, "keeps", r.Resource.Type, r.Resource.ID}, " "))
	if r.Resource.ID == "sha256:bad" {
		return nil, status.Error(codes.InvalidArgument, "no such resource")
	}
	return &emptypb.Empty{}, nil
}

func (l *leases) Delete(_ context.Context, r *leasesapi.DeleteRequest) (*emptypb.Empty, error) {
	if l.of.changes = append(l.of.changes, "delete lease "+r.ID); r.ID == "gone" {
		return nil, status.Error(codes.NotFound, "it has expired")
	}
	if collects := r.ID != "lease"; r.Sync != collects {
		return nil, status.Errorf(codes.InvalidArgument, "sync is %t, want %t", r.Sync, collects)
	}
	return &emptypb.Empty{}, nil
}

func (s *snapshots) View(
	_ context.Context, r *snapshotsapi.ViewSnapshotRequest,
) (*snapshotsapi.ViewSnapshotResponse, error) {
	s.of.changes = append(s.of.changes, strings.Join([]string{"view", r.Snapshotter, r.Key, r.Parent}, " "))
	if s.exists {
		return nil, status.Error(codes.AlreadyExists, "left by a killed agent")
	}
	s.exists = true
	return &snapshotsapi.ViewSnapshotResponse{Mounts: s.mounts}, nil
}

func (s *snapshots) Remove(_ context.Context, r *snapshotsapi.RemoveSnapshotRequest) (*emptypb.Empty, error) {
	s.of.changes = append(s.of.changes, "remove "+r.Snapshotter+" "+r.Key)
	switch r.Key {
	case s.inUse:
		return nil, status.Error(codes.FailedPrecondition, "it has children")
	case s.gone:
		return nil, status.Error(codes.NotFound, "no such snapshot")
	}
	s.exists = false
	return &emptypb.Empty{}, nil
}

// serve starts c, and returns a client of it.
func serve(t *testing.T, c *containerd) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	inNamespace := func(ctx context.Context) error {
		if got := metadata.ValueFromIncomingContext(ctx, "containerd-namespace"); len(got) != 1 || got[0] != "k8s.io" {
			return status.Errorf(codes.FailedPrecondition, "namespace %q, want k8s.io", got)
		}
		return nil
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any,
			error) {
			if err := inNamespace(ctx); err != nil {
				return nil, err
			}
			return h(ctx, r)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo,
			h grpc.StreamHandler) error {
			if err := inNamespace(s.Context()); err != nil {
				return err
			}
			return h(srv, s)
		}))
	if c != nil {
		c.content.of, c.leases.of, c.snapshots.of = c, c, c
		contentapi.RegisterContentServer(server, &c.content)
		imagesapi.RegisterImagesServer(server, &c.images)
		leasesapi.RegisterLeasesServer(server, &c.leases)
		snapshotsapi.RegisterSnapshotsServer(server, &c.snapshots)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	client, err := Dial(socket, "", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	})
	return client
}

func TestIngests(t *testing.T) {
	got, err := serve(t, &containerd{}).Ingests(t.Context())
	want := []Ingest{{"layer-sha256:a", 17, 100}, {"config-sha256:b", 0, 0}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Ingests: %v; mismatch (-want +got):\n%s", err, diff)
	}
	if _, err := serve(t, nil).Ingests(t.Context()); !IsUnimplemented(err) {
		t.Errorf("Ingests of another runtime: %v, want Unimplemented", err)
	}
}

func TestImageTarget(t *testing.T) {
	client := serve(t, &containerd{})
	if got, err := client.ImageTarget(t.Context(), "web"); got != "sha256:a" || err != nil {
		t.Errorf("ImageTarget = %q, %v; want sha256:a", got, err)
	}
	if got, err := client.ImageTarget(t.Context(), "bare"); !errors.Is(err, errAnswer) {
		t.Errorf("ImageTarget of an image without a target = %q, %v; want %v", got, err, errAnswer)
	}
}

func TestBlobs(t *testing.T) {
	server := &containerd{}
	client := serve(t, server)
	got, err := client.Blobs(t.Context())
	if diff := cmp.Diff([]Blob{
		{
			Digest:    "sha256:a",
			Size:      17,
			Refs:      []string{"sha256:c", "sha256:l"},
			Snapshots: []Snapshot{{"overlayfs", "sha256:chain"}},
		},
		{Digest: "sha256:b"},
	}, got); diff != "" || err != nil {
		t.Errorf("Blobs: %v; mismatch (-want +got):\n%s", err, diff)
	}
	for digest, want := range map[string]string{"sha256:a": "hello fixture", "sha256:b": ""} {
		blob, err := client.ReadBlob(t.Context(), digest)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(blob)
		if string(data) != want || IsNotFound(err) != (want == "") {
			t.Errorf("%s: %q, %v; want %q, and NotFound only without data", digest, data, err, want)
		}
		if err := blob.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := client.DeleteBlob(t.Context(), "sha256:a"); err != nil {
		t.Error(err)
	}
	if err := client.CollectGarbage(t.Context(), "look"); err != nil {
		t.Error(err)
	}
	want := []string{"delete sha256:a", "create lease look", "delete lease look"}
	if diff := cmp.Diff(want, server.changes); diff != "" {
		t.Errorf("changes mismatch (-want +got):\n%s", diff)
	}
}

func TestHold(t *testing.T) {
	server := &containerd{}
	client := serve(t, server)
	err := client.Hold(t.Context(), "lease", time.Hour, Holding{
		Blobs: []string{"sha256:a", "sha256:b"}, Snapshots: []Snapshot{{"overlayfs", "sha256:chain"}},
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"lease", "gone"} {
		if err := client.Release(t.Context(), name); err != nil {
			t.Errorf("Release(%s) = %v, want nil", name, err)
		}
	}
	want := []string{
		"create lease lease", "lease keeps content sha256:a", "lease keeps content sha256:b",
		"lease keeps snapshots/overlayfs sha256:chain", "delete lease lease", "delete lease gone",
	}
	if diff := cmp.Diff(want, server.changes); diff != "" {
		t.Errorf("changes mismatch (-want +got):\n%s", diff)
	}
	server.changes = nil
	if err := client.Hold(t.Context(), "lease", time.Hour, Holding{Blobs: []string{"sha256:bad"}}); err == nil {
		t.Error("Hold of something that cannot be kept = nil, want an error")
	}
	want = []string{"create lease lease", "lease keeps content sha256:bad", "delete lease lease"}
	if diff := cmp.Diff(want, server.changes); diff != "" {
		t.Errorf("changes mismatch (-want +got):\n%s", diff)
	}
}

// TestReplaceBlob: nothing is removed before all of the new blob is there and right.
func TestReplaceBlob(t *testing.T) {
	data := strings.Repeat("x", chunk+17)
	sum := sha256.Sum256([]byte(data))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	commit := func(data, digest, labels string) string {
		return fmt.Sprintf("commit %d bytes as %s with map[%s] for lease lease", len(data), digest[:10], labels)
	}
	removed := []string{"delete " + digest, "create lease lease-collect", "delete lease lease-collect"}
	const empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for name, tc := range map[string]struct {
		server  content
		from    io.Reader
		digest  string
		want    []string
		err     string
		removed bool
	}{
		"a damaged blob": {content{labels: map[string]string{"a": "b"}}, strings.NewReader(data), digest,
			append(slices.Clone(removed), commit(data, digest, "a:b")), "", false},
		"a missing blob": {content{}, strings.NewReader(data), digest, []string{commit(data, digest, "")}, "", false},
		"an empty blob":  {content{}, strings.NewReader(""), empty, []string{commit("", empty, "")}, "", false},
		"other bytes": {content{labels: map[string]string{}}, strings.NewReader(data[1:]), digest,
			[]string{"abort lease-" + digest}, "have the digest", false},
		"a link that breaks down": {content{labels: map[string]string{}},
			io.MultiReader(strings.NewReader(data), iotest.ErrReader(errors.New("no link"))), digest,
			[]string{"abort lease-" + digest}, "no link", false},
		"a full disk": {content{labels: map[string]string{}, failing: true}, strings.NewReader(data), digest,
			append(slices.Clone(removed), "abort lease-"+digest), "no space", true},
	} {
		t.Run(name, func(t *testing.T) {
			server := &containerd{content: tc.server}
			err := serve(t, server).ReplaceBlob(t.Context(), "lease", tc.digest, tc.from)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) ||
				errors.Is(err, ErrRemoved) != tc.removed {
				t.Errorf("ReplaceBlob() = %v, want %q, ErrRemoved %t", err, tc.err, tc.removed)
			}
			if diff := cmp.Diff(tc.want, server.changes); diff != "" {
				t.Errorf("changes mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemoveLayers(t *testing.T) {
	for name, tc := range map[string]struct {
		server snapshots
		want   int
		made   int
	}{
		"all":          {snapshots{}, 3, 3},
		"one is gone":  {snapshots{gone: "b"}, 2, 3},
		"one is used":  {snapshots{inUse: "b"}, 1, 2},
		"all are used": {snapshots{inUse: "c"}, 0, 1},
	} {
		server := &containerd{snapshots: tc.server}
		got, err := serve(t, server).RemoveLayers(t.Context(), "overlayfs", []string{"c", "b", "a"})
		if got != tc.want || err != nil || len(server.changes) != tc.made {
			t.Errorf("%s: RemoveLayers() = %d, %v after %q; want %d after %d", name, got, err, server.changes, tc.want,
				tc.made)
		}
	}
}

func TestLayerDirs(t *testing.T) {
	for name, left := range map[string]bool{"clean": false, "left by a killed agent": true} {
		server := &containerd{
			snapshots: snapshots{exists: left, mounts: []*types.Mount{{Type: "bind", Source: "/s/1/fs"}}},
		}
		got, err := serve(t, server).LayerDirs(t.Context(), "overlayfs", "sha256:c", "look")
		if diff := cmp.Diff([]string{"/s/1/fs"}, got); diff != "" || err != nil {
			t.Errorf("%s: %v; mismatch (-want +got):\n%s", name, err, diff)
		}
		want := []string{"view overlayfs look sha256:c", "remove overlayfs look"}
		if left {
			want = append(want, want...)
		}
		if diff := cmp.Diff(want, server.changes); diff != "" {
			t.Errorf("%s: changes mismatch (-want +got):\n%s", name, diff)
		}
	}
}

func TestLayers(t *testing.T) {
	bind := func(source string) *types.Mount {
		return &types.Mount{Type: "bind", Source: source, Options: []string{"ro", "rbind"}}
	}
	overlay := &types.Mount{
		Type: "overlay", Source: "overlay", Options: []string{"index=off", "lowerdir=/s/3/fs:/s/2/fs:/s/1/fs"},
	}
	for name, tc := range map[string]struct {
		mounts []*types.Mount
		want   []string
	}{
		"one layer":         {[]*types.Mount{bind("/s/1/fs")}, []string{"/s/1/fs"}},
		"three layers":      {[]*types.Mount{overlay}, []string{"/s/3/fs", "/s/2/fs", "/s/1/fs"}},
		"no overlay":        {[]*types.Mount{{Type: "zfs", Source: "pool"}}, nil},
		"no lower folders":  {[]*types.Mount{{Type: "overlay", Options: []string{"lowerdir="}}}, nil},
		"bind from nowhere": {[]*types.Mount{bind("")}, nil},
		"two mounts":        {[]*types.Mount{bind("/a"), bind("/b")}, nil},
		"a nil mount":       {[]*types.Mount{nil}, nil},
		"none":              {nil, nil},
	} {
		got, err := layers(tc.mounts)
		if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want an error: %v; layers mismatch (-want +got):\n%s", name, err, tc.want == nil, diff)
		}
	}
}
