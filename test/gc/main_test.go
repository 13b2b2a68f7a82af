// Package gc shows on a real containerd, whose disk is small and fills, that the node stays clear of what nobody needs:
// images, dead containers, and what pods leave behind.
package gc

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	imagev1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	imagetypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// smallDisk mounts a file system of so many bytes where a containerd with the returned root will keep its images. It
// goes with the containerd.
func smallDisk(t *testing.T, bytes int) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "disk")
	dir := filepath.Join(root, "containerd")
	env.Must(t, os.MkdirAll(dir, 0o711))
	env.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)))
	return root
}

// node is a node of the fixture, with a registry beside it.
type node struct {
	*env.Node
	registry *mirror
}

// with returns the node for a subtest.
func (n *node) with(t *testing.T) *node { return &node{n.With(t), n.registry} }

// pod is the manifest of a pod with one container that runs a shell script.
func pod(name, image, script string, more ...string) string {
	return strings.Replace(env.Pod(name, script), images.Demo, image, 1) + strings.Join(more, "\n")
}

// images are the tags of the images that the runtime has.
func (n *node) images() map[string]bool {
	n.T.Helper()
	list, err := n.CRI.Images.ListImages(n.T.Context(), &runtimeapi.ListImagesRequest{})
	env.Must(n.T, err)
	tags := map[string]bool{}
	for _, i := range list.Images {
		for _, tag := range i.RepoTags {
			tags[tag] = true
		}
	}
	return tags
}

// usedPercent is how full the disk is.
func (n *node) usedPercent(plus uint64) int {
	n.T.Helper()
	var st unix.Statfs_t
	env.Must(n.T, unix.Statfs(filepath.Join(n.Containerd.Root, "containerd"), &st))
	return int(100 - (int64(st.Bavail)-int64(plus)/int64(st.Bsize))*100/int64(st.Blocks))
}

// mirror is a registry on loopback that holds back the rest of large blobs.
type mirror struct {
	host string

	mu      sync.Mutex
	limit   int64         // how many bytes of each blob are served; 0 is all
	changed chan struct{} // closed when limit changes
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{changed: make(chan struct{})}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = &blobWriter{ResponseWriter: w, m: m, r: r, offset: closeRange(store, r)}
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		m.serve(0)
		server.Close()
	})
	m.host = strings.TrimPrefix(server.URL, "http://")
	return m
}

// serve sets how many bytes of each blob are served; 0 is all. Requests that wait for more get it.
func (m *mirror) serve(limit int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = limit
	close(m.changed)
	m.changed = make(chan struct{})
}

// served returns the limit, and a channel that is closed when it changes.
func (m *mirror) served() (limit int64, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limit, m.changed
}

// closeRange gives a request for the rest of a blob, by which a pull goes on where it was cut off, the end that the
// registry wants to see in it. It returns where the rest begins.
func closeRange(store http.Handler, r *http.Request) (from int64) {
	text, open := strings.CutSuffix(r.Header.Get("Range"), "-")
	if !open {
		return 0
	}
	if _, err := fmt.Sscanf(text, "bytes=%d", &from); err != nil {
		return 0
	}
	head := httptest.NewRecorder()
	store.ServeHTTP(head, httptest.NewRequestWithContext(r.Context(), http.MethodHead, r.URL.Path, nil))
	if size := head.Result().ContentLength; size > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, size-1))
	}
	return from
}

// blobWriter writes as much of a blob as its mirror serves, and waits for the rest.
type blobWriter struct {
	http.ResponseWriter
	m      *mirror
	r      *http.Request
	offset int64 // of the next byte in the blob
}

// Write implements http.ResponseWriter.
func (w *blobWriter) Write(data []byte) (n int, err error) {
	for len(data) > 0 {
		part := data
		limit, changed := w.m.served()
		if limit > 0 {
			part = data[:max(0, min(int64(len(data)), limit-w.offset))]
		}
		if len(part) == 0 {
			if f, ok := w.ResponseWriter.(http.Flusher); ok {
				f.Flush()
			}
			select {
			case <-w.r.Context().Done():
				return n, w.r.Context().Err()
			case <-changed:
			}
			continue
		}
		k, err := w.ResponseWriter.Write(part)
		n, w.offset, data = n+k, w.offset+int64(k), data[k:]
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// demo is the demo image with a layer of random bytes.
func demo(t *testing.T, bytes int64) imagev1.Image {
	t.Helper()
	archive, err := images.Archive(t.Context())
	env.Must(t, err)
	tag, err := name.NewTag(images.Demo)
	env.Must(t, err)
	image, err := tarball.ImageFromPath(archive, &tag)
	env.Must(t, err)
	layer, err := random.Layer(bytes, imagetypes.DockerLayer)
	env.Must(t, err)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		t.Fatal(err)
	}
	return image
}

// push puts an image of so many random bytes into the registry, and returns its name.
func (m *mirror) push(t *testing.T, repo string, bytes int64) string {
	t.Helper()
	ref, err := name.ParseReference(m.host+"/"+repo+":1", name.Insecure)
	env.Must(t, err)
	env.Must(t, remote.Write(ref, demo(t, bytes)))
	return ref.String()
}
