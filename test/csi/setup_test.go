// Package csi shows package edged/storage/csi with a real CSI driver (test/testenv/csi), which mounts for real: the
// pods' side of it is shown in test/conformance.
package csi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/csi"
	"github.com/edgecore-io/edgecore/edged/storage/plugins"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	driver "github.com/edgecore-io/edgecore/test/testenv/csi"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const (
	driverName = "hostpath.csi.edgecore.local"
	nodeName   = "node1"
	mega       = 1 << 20
)

// binary is the driver.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "csi")
	if err == nil {
		binary, err = driver.Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := leak.Run(m)
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// cluster is a cluster of objects. It implements csi.Objects, csi.Cluster and csi.Tokens.
type cluster struct {
	mu          sync.Mutex
	offline     bool
	secrets     map[string]*v1.Secret
	drivers     map[string]*storagev1.CSIDriver
	attachments map[string]*storagev1.VolumeAttachment
	node        *v1.Node
	csiNode     *storagev1.CSINode
	updates     int
}

var errOffline = errors.New("no link to the cloud")

// lookUp finds an object under the lock.
func lookUp[T any](w *cluster, m map[string]*T, name string) (*T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := m[name]; o != nil {
		return o, nil
	}
	if w.offline {
		return nil, errOffline
	}
	return nil, apierrors.NewNotFound(v1.Resource("object"), name)
}

func (w *cluster) Secret(_ context.Context, ns, name string) (*v1.Secret, error) {
	return lookUp(w, w.secrets, ns+"/"+name)
}

func (w *cluster) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return lookUp(w, w.drivers, name)
}

func (w *cluster) VolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return lookUp(w, w.attachments, name)
}

func (w *cluster) PodToken(
	_ context.Context, pod *v1.Pod, audience string, seconds int64,
) (*authenticationv1.TokenRequestStatus, error) {
	return &authenticationv1.TokenRequestStatus{Token: fmt.Sprintf("%s for %q, %d s", pod.Name, audience, seconds),
		ExpirationTimestamp: metav1.Unix(1e9, 0)}, nil
}

func (w *cluster) Node(context.Context, string) (*v1.Node, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.offline {
		return nil, errOffline
	}
	return w.node.DeepCopy(), nil
}

func (w *cluster) UpdateNode(_ context.Context, n *v1.Node) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = n.DeepCopy()
	w.updates++
	return nil
}

func (w *cluster) CSINode(context.Context, string) (*storagev1.CSINode, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.csiNode == nil {
		return nil, apierrors.NewNotFound(v1.Resource("csinode"), nodeName)
	}
	return w.csiNode.DeepCopy(), nil
}

func (w *cluster) CreateCSINode(ctx context.Context, n *storagev1.CSINode) (*storagev1.CSINode, error) {
	return w.UpdateCSINode(ctx, n)
}

func (w *cluster) UpdateCSINode(_ context.Context, n *storagev1.CSINode) (*storagev1.CSINode, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.csiNode = n.DeepCopy()
	w.updates++
	return n, nil
}

// change changes the world under its lock.
func (w *cluster) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// node is the part of an agent that has the volumes.
type node struct {
	*csi.Manager
	t       *testing.T
	root    string
	cluster *cluster
	driver  *driver.Driver
	stop    func()

	mu         sync.Mutex
	events     []string
	registered chan struct{}
	owned      []string
	grown      []string
}

// spec is a CSIDriver with a change.
func object(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
	if change != nil {
		change(&d.Spec)
	}
	return d
}

func newNode(t *testing.T, obj *storagev1.CSIDriver, without ...string) *node {
	t.Helper()
	base, err := os.MkdirTemp("", "csi") // t.TempDir is too long for the path of a socket
	must(t, err)
	t.Cleanup(func() { must(t, volume.UnmountAll(base), os.RemoveAll(base)) })
	n := &node{
		t:    t,
		root: filepath.Join(base, "root"),
		cluster: &cluster{
			secrets:     map[string]*v1.Secret{},
			drivers:     map[string]*storagev1.CSIDriver{},
			attachments: map[string]*storagev1.VolumeAttachment{},
			node: &v1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid", Labels: map[string]string{"mine": "1"}},
			},
		},
		registered: make(chan struct{}, 64),
	}
	if obj != nil {
		n.cluster.drivers[driverName] = obj
	}
	n.driver = driver.Start(t, driver.Options{
		Binary:  binary,
		Name:    driverName,
		Node:    nodeName,
		Root:    n.root,
		Dir:     filepath.Join(base, "driver"),
		Without: without,
	})
	n.start()
	t.Cleanup(func() { n.stop() })
	n.ready()
	return n
}

// start runs the agent's part; what an earlier one knew, it has to find on the disk.
func (n *node) start() {
	ctx, cancel := context.WithCancel(context.Background())
	n.Manager = csi.New(csi.Options{
		Root: n.root, NodeName: nodeName, Objects: n.cluster, Tokens: n.cluster, Cluster: n.cluster,
		Own: func(_ context.Context, pod *v1.Pod, dir string) error {
			n.note(&n.owned, pod.Name+" "+filepath.Base(dir))
			return nil
		},
		Event: func(pod *v1.Pod, _, reason, format string, args ...any) {
			n.note(&n.events, pod.Name+" "+reason+": "+fmt.Sprintf(format, args...))
		},
		Grown: func(_ context.Context, c *v1.PersistentVolumeClaim, size resource.Quantity) error {
			n.note(&n.grown, c.Name+" "+size.String())
			if len(n.noted(&n.grown)) == 1 {
				return errOffline
			}
			return nil
		},
		Registered: func() {
			select {
			case n.registered <- struct{}{}:
			default:
			}
		},
	})
	watcher := plugins.New(filepath.Join(n.root, "plugins_registry"), filewatchtest.New(n.t),
		map[string]plugins.Handler{plugins.TypeCSI: n.Manager})
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{n.Manager.Run, watcher.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				n.t.Error(err)
			}
		})
	}
	n.stop = func() { cancel(); wg.Wait() }
}

// restart is an agent that was killed and comes back: nothing is done in between.
func (n *node) restart() {
	n.stop()
	n.start()
}

func (n *node) note(list *[]string, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*list = append(*list, text)
}

func (n *node) noted(list *[]string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(*list)
}

// ready waits until the driver is registered.
func (n *node) ready() {
	n.t.Helper()
	wait.Receive(n.t, "the driver to register", n.registered)
}

func aPod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{ServiceAccountName: "till"}}
}

// claimed is a volume of the driver that a pod has through a claim.
func claimed(id, fsType string, change func(*v1.PersistentVolume)) volume.Spec {
	s := volume.Spec{
		Name: "pv-" + id, PV: &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + id},
			Spec: v1.PersistentVolumeSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Capacity:    v1.ResourceList{v1.ResourceStorage: resource.MustParse("16Mi")},
				PersistentVolumeSource: v1.PersistentVolumeSource{
					CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: id, FSType: fsType},
				},
			},
		}, Claim: &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + id, Namespace: "shop"},
			Status: v1.PersistentVolumeClaimStatus{
				Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("16Mi")}}},
	}
	if change != nil {
		change(s.PV)
	}
	return s
}

func inline(name string, change func(*v1.CSIVolumeSource)) volume.Spec {
	s := volume.Spec{Name: name, Inline: &v1.CSIVolumeSource{Driver: driverName}}
	if change != nil {
		change(s.Inline)
	}
	return s
}

// dir is the folder of a volume of a pod, made as package volume makes it.
func (n *node) dir(pod *v1.Pod, spec volume.Spec) string {
	n.t.Helper()
	parent := "volumes"
	if spec.Block {
		parent = "volumeDevices"
	}
	dir := filepath.Join(n.root, "pods", string(pod.UID), parent, "kubernetes.io~csi", spec.Name)
	must(n.t, os.MkdirAll(dir, 0o750))
	return dir
}

func (n *node) set(pod *v1.Pod, spec volume.Spec) (string, error) {
	return n.Setup(n.t.Context(), pod, spec, n.dir(pod, spec))
}

func (n *node) up(pod *v1.Pod, spec volume.Spec) string {
	n.t.Helper()
	path, err := n.set(pod, spec)
	if err != nil {
		n.t.Fatalf("set up %s of pod %s: %v, want no error", spec.Name, pod.Name, err)
	}
	return path
}

// fails wants Setup to fail with a text.
func (n *node) fails(pod *v1.Pod, spec volume.Spec, want string) {
	n.t.Helper()
	if path, err := n.set(pod, spec); err == nil || !strings.Contains(err.Error(), want) {
		n.t.Errorf("set up: %s, %v; want %q", path, err, want)
	}
}

func (n *node) take(pod *v1.Pod, spec volume.Spec) error {
	return n.Teardown(n.t.Context(), pod.UID, n.dir(pod, spec))
}

// down takes a volume away, as package volume does, and its folder.
func (n *node) down(pod *v1.Pod, spec volume.Spec) {
	n.t.Helper()
	if err := n.take(pod, spec); err != nil {
		n.t.Fatalf("take %s of pod %s away: %v, want no error", spec.Name, pod.Name, err)
	}
	if err := os.Remove(n.dir(pod, spec)); err != nil {
		n.t.Error(err)
	}
}

// clean checks that nothing is left on the machine. A loop device goes a moment later where someone just looks at it.
func (n *node) clean() {
	n.t.Helper()
	wait.Until(n.t, "all volumes to go", n.left)
}

// left says what is left of volumes.
func (n *node) left() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(mounts), n.root+"/") {
		return errors.New("something is still mounted in " + n.root)
	}
	devices := filepath.Join(n.root, "plugins", "kubernetes.io", "csi", "volumeDevices")
	if _, err := os.Stat(devices); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("still there: %s (%v)", devices, err)
	}
	return n.driver.Left()
}

// calls counts the calls of a method.
func (n *node) calls(method string) int { n.t.Helper(); return len(n.driver.Calls(n.t, method)) }

// last returns the request of the last call of a method.
func (n *node) last(method string) map[string]any {
	n.t.Helper()
	calls := n.driver.Calls(n.t, method)
	if len(calls) == 0 {
		n.t.Fatalf("0 calls of %s, want at least 1", method)
	}
	var out map[string]any
	must(n.t, json.Unmarshal(calls[len(calls)-1].Request, &out))
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sha names the folder of a staged volume.
func sha(handle string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(handle))) }

func resourceOf(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes, resource.BinarySI)
}

// size is that of the file system at a path.
func size(t *testing.T, path string) int64 {
	t.Helper()
	var fs unix.Statfs_t
	must(t, unix.Statfs(path, &fs))
	return int64(fs.Blocks) * fs.Bsize
}

// metrics returns the names of the metrics, and the values of those that are flags.
func metrics(t *testing.T, c prometheus.Collector) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	must(t, registry.Register(c))
	families, err := registry.Gather()
	must(t, err)
	var names []string
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "kubelet_volume_stats_")
		if strings.HasPrefix(name, "health") {
			name += fmt.Sprint(" ", f.GetMetric()[0].GetGauge().GetValue())
		}
		names = append(names, name)
	}
	return names
}
