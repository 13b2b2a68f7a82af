package cri

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
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
	}
	images struct {
		imagesapi.UnimplementedImagesServer
		of *containerd
	}
	leases struct {
		leasesapi.UnimplementedLeasesServer
		of *containerd
	}
	snapshots struct {
		snapshotsapi.UnimplementedSnapshotsServer
		of     *containerd
		exists bool
		mounts []*types.Mount
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
			"containerd.io/gc.ref.content":                       "sha256:c",
			"containerd.io/gc.ref.contents":                      "sha256:another label",
			"containerd.io/gc.ref.snapshot.overlayfs/x":          "sha256:chain",
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

func (*images) Get(_ context.Context, r *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	answer := &imagesapi.GetImageResponse{
		Image: &imagesapi.Image{Name: r.Name, Target: &types.Descriptor{Digest: "sha256:a"}},
	}
	if r.Name == "bare" {
		answer.Image.Target = nil
	}
	return answer, nil
}

func (i *images) Delete(_ context.Context, r *imagesapi.DeleteImageRequest) (*emptypb.Empty, error) {
	i.of.changes = append(i.of.changes, "delete image "+r.Name)
	if r.Name == "gone" {
		return nil, status.Error(codes.NotFound, "no such image")
	}
	return &emptypb.Empty{}, nil
}

func (l *leases) AddResource(_ context.Context, r *leasesapi.AddResourceRequest) (*emptypb.Empty, error) {
	l.of.changes = append(l.of.changes, strings.Join([]string{r.ID, "keeps", r.Resource.Type, r.Resource.ID}, " "))
	if r.Resource.ID == "sha256:bad" {
		return nil, status.Error(codes.InvalidArgument, "no such resource")
	}
	return &emptypb.Empty{}, nil
}

func (l *leases) Create(_ context.Context, r *leasesapi.CreateRequest) (*leasesapi.CreateResponse, error) {
	l.of.changes = append(l.of.changes, "create lease "+r.ID)
	if expires, ok := r.Labels["containerd.io/gc.expire"]; ok {
		until, err := time.Parse(time.RFC3339, expires)
		if left := time.Until(until); err != nil || left < 59*time.Minute || left > time.Hour {
			return nil, status.Errorf(codes.InvalidArgument, "it expires in %v, want an hour", left)
		}
	}
	return nil, status.Error(codes.AlreadyExists, "left by a killed agent")
}

func (l *leases) Delete(_ context.Context, r *leasesapi.DeleteRequest) (*emptypb.Empty, error) {
	switch {
	case r.ID == "gone":
		return nil, status.Error(codes.NotFound, "it has expired")
	case r.Sync != (r.ID == "look"):
		return nil, status.Errorf(codes.InvalidArgument, "sync is %t", r.Sync)
	}
	l.of.changes = append(l.of.changes, "delete lease "+r.ID)
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
		c.content.of, c.images.of, c.leases.of, c.snapshots.of = c, c, c, c
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
	refs := []Ref{{KindContent, "sha256:c"}, {KindContent, "sha256:l"}, {"snapshots/overlayfs", "sha256:chain"}}
	if diff := cmp.Diff([]Blob{{"sha256:a", 17, refs}, {"sha256:b", 0, nil}}, got); diff != "" || err != nil {
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
	keep := []Ref{{KindContent, "sha256:a"}, {"snapshots/overlayfs", "sha256:chain"}}
	if err := client.Hold(t.Context(), "lease", time.Hour, keep); err != nil {
		t.Error(err)
	}
	if err := client.Hold(t.Context(), "lease", time.Hour, []Ref{{KindContent, "sha256:bad"}}); err == nil {
		t.Error("Hold of something that cannot be kept = nil, want an error")
	}
	for _, name := range []string{"lease", "gone"} {
		if err := errors.Join(client.Release(t.Context(), name), client.DeleteImage(t.Context(), name)); err != nil {
			t.Errorf("Release and DeleteImage of %s = %v, want nil", name, err)
		}
	}
	want := []string{
		"create lease lease", "lease keeps content sha256:a", "lease keeps snapshots/overlayfs sha256:chain",
		"create lease lease", "lease keeps content sha256:bad",
		"delete lease lease", "delete image lease", "delete image gone",
	}
	if diff := cmp.Diff(want, server.changes); diff != "" {
		t.Errorf("changes mismatch (-want +got):\n%s", diff)
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
