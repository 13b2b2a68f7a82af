// Package gc shows on a real containerd, whose disk is small and fills, that the node stays clear of what nobody needs: images,
// dead containers, and what pods leave behind.
package gc

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	imagev1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	imagetypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// patience bounds every wait: these machines are shared.
const patience = 90 * time.Second

var binary struct {
	path string
	err  error
}

// TestMain builds the agent once for all tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "edgecore-test-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary.path, binary.err = agent.Build(context.Background(), dir)
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// smallDisk mounts a file system of so many bytes where a containerd with the returned root will keep its images. It goes with
// the containerd.
func smallDisk(t *testing.T, bytes int) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "disk")
	dir := filepath.Join(root, "containerd")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatal(err)
	}
	return root
}

// node is a containerd on a small disk with an edgecore on it, and a registry beside it.
type node struct {
	*agent.Agent
	t        *testing.T
	ctrd     *containerd.Instance
	cri      *cri.Client
	registry *mirror
}

func newNode(t *testing.T, disk int, kubelet map[string]any) *node {
	t.Helper()
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	ctrd := testenv.StartContainerd(t, testenv.Options{Root: smallDisk(t, disk)})
	a := testenv.StartAgent(t, ctrd, agent.Options{Binary: binary.path, Kubelet: kubelet})
	return &node{Agent: a, t: t, ctrd: ctrd, cri: testenv.Dial(t, ctrd), registry: newMirror(t)}
}

// pod is a manifest of one container that runs a shell script.
func pod(name, image, script string, more ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: [sh, -c, %q]
%s
`, name, image, script, strings.Join(more, "\n"))
}

// forever is a script that ends at once when it is told to.
const forever = "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

func (n *node) manifest(name, content string) {
	n.t.Helper()
	if err := n.WriteManifest(name+".yaml", content); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(name string) {
	n.t.Helper()
	if err := n.RemoveManifest(name + ".yaml"); err != nil {
		n.t.Fatal(err)
	}
}

// running waits until pods are ready, and returns the last one.
func (n *node) running(names ...string) (pod *v1.Pod) {
	n.t.Helper()
	testenv.Poll(n.t, patience, func() error {
		pods, err := n.Pods(n.t.Context())
		if err != nil {
			return err
		}
		for _, name := range names {
			if pod = pods[name]; pod == nil || !slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue }) {
				return fmt.Errorf("pod %s does not run: %+v", name, pod)
			}
		}
		return nil
	})
	return pod
}

func (n *node) gone(names ...string) {
	n.t.Helper()
	testenv.Poll(n.t, patience, func() error {
		pods, err := n.Pods(n.t.Context())
		for _, name := range names {
			if err == nil && pods[name] != nil {
				err = fmt.Errorf("pod %s is still there", name)
			}
		}
		return err
	})
}

// images are the tags of the images that the runtime has.
func (n *node) images() map[string]bool {
	n.t.Helper()
	list, err := n.cri.Images.ListImages(n.t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	tags := map[string]bool{}
	for _, i := range list.Images {
		for _, tag := range i.RepoTags {
			tags[tag] = true
		}
	}
	return tags
}

// run runs a command of edgecore that is to succeed.
func (n *node) run(args ...string) string {
	n.t.Helper()
	out, err := n.Run(n.t.Context(), args...)
	if err != nil {
		n.t.Fatalf("edgecore %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// usedPercent is how full the disk is.
func (n *node) usedPercent(plus uint64) int {
	n.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Join(n.ctrd.Root, "containerd"), &st); err != nil {
		n.t.Fatal(err)
	}
	return int(100 - (int64(st.Bavail)-int64(plus)/int64(st.Bsize))*100/int64(st.Blocks))
}

// mirror is a registry on loopback whose large blobs may come slowly, or hang.
type mirror struct {
	host string
	// rate is bytes a second, 0 all at once. hangAfter is after how many bytes of a large blob nothing comes any more, 0 never.
	rate, hangAfter atomic.Int64
	release         chan struct{}
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{release: make(chan struct{})}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = &slowly{ResponseWriter: w, m: m, r: r}
			closeRange(store, r)
		}
		store.ServeHTTP(w, r)
	}))
	var once sync.Once
	t.Cleanup(func() {
		once.Do(func() { close(m.release) })
		server.Close()
	})
	m.host = strings.TrimPrefix(server.URL, "http://")
	return m
}

// closeRange gives a request for the rest of a blob, by which a pull goes on where it was cut off, the end that the registry
// wants to see in it.
func closeRange(store http.Handler, r *http.Request) {
	from, open := strings.CutSuffix(r.Header.Get("Range"), "-")
	if !open {
		return
	}
	head := httptest.NewRecorder()
	store.ServeHTTP(head, httptest.NewRequestWithContext(r.Context(), http.MethodHead, r.URL.Path, nil))
	if size := head.Result().ContentLength; size > 0 {
		r.Header.Set("Range", fmt.Sprintf("%s-%d", from, size-1))
	}
}

// slowly writes as slowly as its mirror says.
type slowly struct {
	http.ResponseWriter
	m       *mirror
	r       *http.Request
	written int64
}

func (s *slowly) Write(data []byte) (n int, err error) {
	const piece = 64 << 10
	for len(data) > 0 {
		if limit := s.m.hangAfter.Load(); limit > 0 && s.written >= limit {
			select {
			case <-s.r.Context().Done():
				return n, s.r.Context().Err()
			case <-s.m.release:
			}
		}
		part := data[:min(piece, len(data))]
		k, err := s.ResponseWriter.Write(part)
		n, s.written, data = n+k, s.written+int64(k), data[k:]
		if err != nil {
			return n, err
		}
		if rate := s.m.rate.Load(); rate > 0 && s.written > piece {
			if f, ok := s.ResponseWriter.(http.Flusher); ok {
				f.Flush()
			}
			time.Sleep(time.Duration(k) * time.Second / time.Duration(rate))
		}
	}
	return n, nil
}

// demo is the demo image with a layer of random bytes.
func demo(t *testing.T, bytes int64) imagev1.Image {
	t.Helper()
	archive, err := images.Archive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(images.Demo)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := random.Layer(bytes, imagetypes.DockerLayer)
	if err != nil {
		t.Fatal(err)
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		t.Fatal(err)
	}
	return image
}

// push puts an image of so many random bytes into the registry, and returns its name.
func (m *mirror) push(t *testing.T, repo string, bytes int64) string {
	t.Helper()
	ref, err := name.ParseReference(m.host+"/"+repo+":1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, demo(t, bytes)); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}
