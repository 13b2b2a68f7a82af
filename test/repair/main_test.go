// Package repair shows on a real containerd, of both kinds, whose files are damaged as a power cut damages them, that
// the pods run again: with a registry, with an archive, and with neither of them. And that a wrong spec has nothing
// repaired.
package repair

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	imagev1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// node is a containerd with an edgecore on it, and a registry beside it.
type node struct {
	*env.Node
	store *store
}

func newNode(t *testing.T, runtime testenv.Options) *node {
	t.Helper()
	return &node{
		store: newStore(t), Node: env.StartNode(t, built, env.NodeOptions{
			Runtime: runtime,
			Agent: agent.Options{
				Kubelet: map[string]any{"crashLoopBackOff": map[string]any{"maxContainerRestartPeriod": "1s"}},
			},
		}),
	}
}

// pod is a manifest of one container that runs a shell script with the shell at a path.
func pod(name, image, shell string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: [%s, -c, %q]
`, name, image, shell, env.Forever)
}

// remove removes manifests, and waits until their pods are gone.
func (n *node) remove(names ...string) {
	n.T.Helper()
	for _, name := range names {
		n.Remove(name)
	}
	n.Gone(names...)
}

// event waits until there is an event with these words.
func (n *node) event(words ...string) {
	n.T.Helper()
	wait.Until(n.T, "an event", func() error {
		events, err := n.Get(n.T.Context(), "/events")
		if err != nil {
			return err
		}
		for line := range strings.SplitSeq(events, `"kind":"Event"`) {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				return nil
			}
		}
		return fmt.Errorf("there is no event with %q in\n%s", words, events)
	})
}

// conditions are what the agent says of itself.
func (n *node) conditions() string {
	n.T.Helper()
	text, err := n.Get(n.T.Context(), "/status")
	env.Must(n.T, err)
	return text
}

// pull brings an image onto the node.
func (n *node) pull(image string) {
	n.T.Helper()
	n.Command("images", "pull", image)
}

// id is what the runtime calls an image; "" when it does not have it.
func (n *node) id(image string) string {
	n.T.Helper()
	resp, err := n.CRI.Images.ImageStatus(n.T.Context(),
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	env.Must(n.T, err)
	return resp.GetImage().GetId()
}

// sandbox is the newest one of a pod.
type sandbox struct {
	id    string
	ready bool
	pid   int
}

func (n *node) sandbox(uid string) (newest sandbox) {
	n.T.Helper()
	list, err := n.CRI.ListPodSandbox(n.T.Context(),
		&runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid}},
		})
	env.Must(n.T, err)
	var attempt uint32
	for _, box := range list.Items {
		if newest.id == "" || box.Metadata.Attempt > attempt {
			newest, attempt = sandbox{id: box.Id, ready: box.State == runtimeapi.PodSandboxState_SANDBOX_READY},
				box.Metadata.Attempt
		}
	}
	if newest.id == "" {
		n.T.Fatalf("sandboxes of pod %s = %v, want at least one", uid, list.Items)
	}
	st, err := n.CRI.PodSandboxStatus(n.T.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: newest.id,
		Verbose: true})
	if err != nil {
		return newest
	}
	var info struct{ Pid int }
	env.Must(n.T, json.Unmarshal([]byte(st.Info["info"]), &info))
	newest.pid = info.Pid
	return newest
}

// unpacked is the place of a file in the layers, which is in one of them only.
func (n *node) unpacked(path string) string {
	n.T.Helper()
	found, err := filepath.Glob(n.layers(path))
	if err != nil || len(found) != 1 {
		n.T.Fatalf("%s is in the layers %v, %v, want one", path, found, err)
	}
	return found[0]
}

// layers are the places that a file may have in the layers, as a pattern.
func (n *node) layers(path string) string {
	return filepath.Join(n.Containerd.Root, "containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs", path)
}

// blob is the place of a blob.
func (n *node) blob(digest string) string {
	return filepath.Join(n.Containerd.Root, "containerd/io.containerd.content.v1.content/blobs",
		strings.ReplaceAll(digest, ":", "/"))
}

// store is a registry on loopback that can be away.
type store struct {
	host string
	away atomic.Bool
	// lost is what happens to the blob of a digest; nil: nothing.
	lost atomic.Pointer[loss]
}

// loss is the loss of the link in the middle of a blob.
type loss struct {
	digest string
	// reached is closed when half of the blob was sent. Then the registry is away, or with hang it sends nothing more
	// until the client goes.
	reached chan struct{}
	// left is closed when the client has gone.
	left chan struct{}
	once sync.Once
	hang bool
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.away.Load() {
			http.Error(w, "no way through", http.StatusServiceUnavailable)
			return
		}
		if strings.Contains(r.URL.Path, "/blobs/") && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			w.Header().Set("Content-Type", "application/octet-stream") // as the usual registries do
		}
		// containerd goes on with the half of a blob that it has; package registry answers that with an error.
		r.Header.Del("Range")
		if l := s.lost.Load(); l != nil && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, l.digest) {
			w = &half{ResponseWriter: w, store: s, loss: l, r: r}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	return s
}

// lose has the link lost in the middle of a blob.
func (s *store) lose(digest string, hang bool) *loss {
	l := &loss{digest: digest, reached: make(chan struct{}), left: make(chan struct{}), hang: hang}
	s.lost.Store(l)
	return l
}

// wait waits until the link is lost.
func (l *loss) wait(t *testing.T) {
	t.Helper()
	wait.Until(t, "the loss of the link", func() error { return closed(l.reached) })
}

func closed(c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	default:
		return errors.New("it has not come to that")
	}
}

// half sends half of an answer.
type half struct {
	http.ResponseWriter
	store *store
	loss  *loss
	r     *http.Request
	sent  int
}

func (h *half) Write(p []byte) (int, error) {
	size, err := strconv.Atoi(h.Header().Get("Content-Length"))
	if err != nil {
		return 0, err
	}
	if h.sent+len(p) <= size/2 {
		n, err := h.ResponseWriter.Write(p)
		h.sent += n
		return n, err
	}
	if _, err := h.ResponseWriter.Write(p[:size/2-h.sent]); err != nil {
		return 0, err
	}
	http.NewResponseController(h.ResponseWriter).Flush()
	if !h.loss.hang {
		h.store.away.Store(true)
	}
	h.loss.once.Do(func() {
		close(h.loss.reached)
		if h.loss.hang {
			<-h.r.Context().Done()
			close(h.loss.left)
		}
	})
	panic(http.ErrAbortHandler)
}

// image is an image in the registry: all layers of the demo image, and one of its own with a shell at path.
type image struct {
	name, path string
	layer      string // the digest of its own layer
	program    []byte
	imagev1.Image
}

// push makes an image and puts it into the registry.
func (s *store) push(t *testing.T, repo string) image {
	t.Helper()
	base, program := demo(t)
	path := "opt/" + repo + "/sh"
	layer := layerOf(t, path, program)
	full, err := mutate.AppendLayers(base, layer)
	env.Must(t, err)
	ref, err := name.ParseReference(s.host+"/"+repo+":1", name.Insecure)
	env.Must(t, err)
	env.Must(t, remote.Write(ref, full))
	digest, err := layer.Digest()
	env.Must(t, err)
	return image{ref.String(), path, digest.String(), program, full}
}

// archive writes an image as docker save does.
func (i image) archive(t *testing.T, file string) {
	t.Helper()
	tag, err := name.NewTag(i.name, name.Insecure)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), tarball.WriteToFile(file, tag, i.Image))
	}
	env.Must(t, err)
}

// base is the demo image and the program in it, read once.
var base struct {
	once    sync.Once
	image   imagev1.Image
	program []byte
	err     error
}

func demo(t *testing.T) (imagev1.Image, []byte) {
	t.Helper()
	base.once.Do(func() {
		var archive string
		if archive, base.err = images.Archive(context.Background()); base.err != nil {
			return
		}
		var tag name.Tag
		if tag, base.err = name.NewTag(images.Demo); base.err != nil {
			return
		}
		if base.image, base.err = tarball.ImageFromPath(archive, &tag); base.err == nil {
			base.program, base.err = busybox(base.image)
		}
	})
	if base.err != nil {
		t.Fatal(base.err)
	}
	return base.image, base.program
}

// busybox is the program in the demo image.
func busybox(img imagev1.Image) ([]byte, error) {
	content := mutate.Extract(img)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("busybox is not in the demo image: %w", err)
		}
		if filepath.Clean(header.Name) == "bin/busybox" {
			return io.ReadAll(r)
		}
	}
}

// layerOf is a layer with one program, and with a file of the layers below removed.
func layerOf(t *testing.T, path string, program []byte) imagev1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []tar.Header{
		{Name: filepath.Dir(path) + "/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: path, Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg},
		{Name: filepath.Dir(path) + "/link", Typeflag: tar.TypeLink, Linkname: path, Mode: 0o755},
		{Name: "www/.wh.index.html", Typeflag: tar.TypeReg},
	} {
		env.Must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			if _, err := w.Write(program); err != nil {
				t.Fatal(err)
			}
		}
	}
	env.Must(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	}, tarball.WithCompressionLevel(gzip.BestSpeed))
	env.Must(t, err)
	return layer
}
