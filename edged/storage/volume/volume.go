// Package volume sets up a pod's volumes on the node and removes them again: emptyDir, hostPath, configMap, secret,
// downwardAPI, projected volumes of those, of tokens and of trust bundles, NFS, and what claims are bound to. Folders
// lie where the kubelet has them, <root>/pods/<uid>/volumes/kubernetes.io~<plugin>/<name>.
//
// Setup may be called at any time, and again: it makes what is missing and brings the content of configMaps and secrets
// up to date, in one step for each volume. Where nothing differs it writes nothing, not even a time stamp. What
// containers did to an emptyDir stays. Secrets, and what follows a pod's labels, lie in memory (tmpfs, kept out of swap
// where the kernel can), never on flash.
//
// # Claims
//
// A persistentVolumeClaim, and the claim of a generic ephemeral volume, is looked up through Options.Claims once: what
// it is bound to (a Spec) is remembered until the pod's volumes are taken away, so that a running pod needs no further
// lookup. hostPath, local and NFS volumes are put in place here. Those of CSI, also the ones that are written in the
// pod, are handed to Options.Driver, which gives back a folder, or with volumeMode Block a device; see Driver.
//
// # The end
//
// Teardown first takes away the binds of sub-paths, then has the driver take away its volumes, then unmounts and
// removes what is below the pod's folder and never anything else: it does not cross a mount, follow a link, or remove
// while something is mounted. It goes by what is on the disk alone. Both may be killed at any point and called again.
package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/edged/podstate/apiendpoint"
	"github.com/edgecore-io/edgecore/pkg/readdir"
)

// Objects gives the content of volumes. apierrors.IsNotFound tells a missing object.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gives the tokens of service accounts.
type Tokens interface {
	// Token returns a token, and when it is to be asked for again at the latest; zero is never.
	Token(ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection) (string, time.Time, error)
}

// Fields gives the values of the downward API.
type Fields interface {
	Field(pod *v1.Pod, path string) (string, error)
	Resource(pod *v1.Pod, container string, ref *v1.ResourceFieldSelector) (string, error)
}

// Options configure a Manager.
type Options struct {
	// Root is the agent's folder; pods lie in Root/pods.
	Root    string
	Objects Objects
	Tokens  Tokens
	Fields  Fields
	// Bundles gives the trust bundles of projected volumes; nil where there are none.
	Bundles Bundles
	// Claims finds what claims are bound to; nil where there are none.
	Claims Claims
	// Driver puts the volumes of CSI in place; nil where there is no CSI.
	Driver Driver
	// Selects reports whether this node is one of those that a selector means: volumes may be for some nodes alone. nil
	// takes them all.
	Selects func(ctx context.Context, selector *v1.NodeSelector) (bool, error)
	// Mounter mounts what is on servers and block devices; nil is mount(8).
	Mounter Mounter
	// RecursiveReadOnly reports whether the runtime of a pod can make mounts read-only with all below them; nil cannot.
	RecursiveReadOnly func(pod *v1.Pod) bool
	// APIEndpoint is the Kubernetes API on the device, whose CA pods that use it get; nil is none.
	APIEndpoint *apiendpoint.Endpoint
	// MemoryBytes is the node's allocatable memory: what an emptyDir in memory may grow to when neither
	// it nor its pod has a limit. 0 leaves it to the kernel (half of the memory).
	MemoryBytes int64
}

// Manager sets volumes up. Its methods may be called for different pods at once.
type Manager struct {
	opts Options

	mu sync.Mutex
	// specs holds what the claims of the pods that are set up were found to be bound to, by the name of the volume.
	specs map[types.UID]map[string]Spec
	// alone holds which pod has a volume that no two pods may have, by the name of the PersistentVolume.
	alone map[string]types.UID
	// looks holds the newest look at how full each volume is.
	looks map[volumeOfPod]*usageLook
}

// New makes a Manager.
func New(opts Options) *Manager {
	if opts.Mounter == nil {
		opts.Mounter = mountCommand{}
	}
	return &Manager{
		opts:  opts,
		specs: map[types.UID]map[string]Spec{},
		alone: map[string]types.UID{},
		looks: map[volumeOfPod]*usageLook{},
	}
}

// Volumes says by the name of each volume of a pod where it is.
type Volumes map[string]PodVolume

// PodVolume is where a volume is on the node.
type PodVolume struct {
	// Path is a file or folder of the node; with Block a device.
	Path string
	// ReadOnly: containers see the volume read-only, whatever they ask for.
	ReadOnly bool
	Block    bool
	// RenewAt is when the volume is to be set up again at the latest, since a token in it is to be renewed; zero is
	// never.
	RenewAt time.Time
	// Polled: the volume is to be set up again now and then. Its content comes from a driver, a server or an object of
	// the cluster whose changes the node is not sent.
	Polled bool
}

// RenewAt returns when the volumes are to be set up again at the latest; zero is never.
func (v Volumes) RenewAt() time.Time {
	var at time.Time
	for _, one := range v {
		at = earlier(at, one.RenewAt)
	}
	return at
}

// Polled reports whether a volume is to be set up again now and then.
func (v Volumes) Polled() bool {
	for _, one := range v {
		if one.Polled {
			return true
		}
	}
	return false
}

// earlier returns the earlier of two times; a zero time means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Error is a volume that could not be set up, in the words of the event that tells it.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	if claim, ok := errors.AsType[*claimError](e.Err); ok {
		return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[], failed "+
			"to process volumes=[%s]: %v", e.Volume, e.Volume, claim)
	}
	if affinity, ok := errors.AsType[*affinityError](e.Err); ok {
		return fmt.Sprintf("MountVolume.NodeAffinity check failed for volume %q : %v", e.Volume, affinity)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Setup puts the volumes of a pod in place that its containers have, and says where. The first that fails is the error;
// a pod with such a volume that this node cannot have gets nothing at all. Volumes that no container has are left out,
// whatever they are.
func (m *Manager) Setup(ctx context.Context, pod *v1.Pod) (Volumes, error) {
	if err := Unsupported(pod); err != nil {
		return nil, err
	}
	vols, left := Volumes{}, &room{maxContent}
	for vol := range usedVolumes(pod) {
		if vol.Image != nil {
			continue // the runtime mounts images itself
		}
		place, err := m.setupVolume(ctx, pod, vol, left)
		place.Polled = polled(vol)
		if err != nil {
			m.forgetSpec(pod.UID, vol.Name)
			return nil, &Error{vol.Name, err}
		}
		vols[vol.Name] = place
	}
	return vols, nil
}

// setupVolume puts one volume of a pod in place.
func (m *Manager) setupVolume(ctx context.Context, pod *v1.Pod, vol *v1.Volume, left *room) (PodVolume, error) {
	switch {
	case vol.PersistentVolumeClaim != nil, vol.Ephemeral != nil:
		return m.setupClaim(ctx, pod, vol)
	case vol.CSI != nil:
		readOnly := isTrue(vol.CSI.ReadOnly)
		return m.setupDriven(ctx, pod, Spec{Name: vol.Name, Inline: vol.CSI, ReadOnly: readOnly})
	case vol.NFS != nil:
		return m.setupNFS(ctx, pod, nfsMount{name: vol.Name, source: vol.NFS, readOnly: vol.NFS.ReadOnly})
	case vol.HostPath != nil:
		return PodVolume{Path: vol.HostPath.Path}, checkHostPath(vol.HostPath)
	case vol.EmptyDir != nil:
		path, err := m.setupEmptyDir(pod, vol)
		return PodVolume{Path: path}, err
	case filledByAgent(vol):
		return m.setupFiles(ctx, pod, vol, left)
	}
	return PodVolume{}, fmt.Errorf("volume type %s is not supported", Type(vol)) // Unsupported has said so before
}

// polled reports whether what is in a volume may change without a message to the node.
func polled(vol *v1.Volume) bool {
	switch {
	case vol.PersistentVolumeClaim != nil, vol.Ephemeral != nil, vol.CSI != nil, vol.NFS != nil:
		return true
	case vol.Projected != nil:
		return slices.ContainsFunc(vol.Projected.Sources, func(s v1.VolumeProjection) bool {
			return s.ClusterTrustBundle != nil
		})
	}
	return false
}

// spec returns what the claim of a volume is bound to, from memory where it was found before.
func (m *Manager) spec(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (Spec, error) {
	m.mu.Lock()
	spec, known := m.specs[pod.UID][vol.Name]
	m.mu.Unlock()
	if known {
		return spec, nil
	}
	spec, err := m.resolve(ctx, pod, vol)
	if err != nil {
		return Spec{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.specs[pod.UID] == nil {
		m.specs[pod.UID] = map[string]Spec{}
	}
	m.specs[pod.UID][vol.Name] = spec
	return spec, nil
}

// forgetSpec makes the next Setup look up the claim of a volume again: it may change while a pod waits for its volume.
func (m *Manager) forgetSpec(uid types.UID, volume string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.specs[uid], volume)
}

// Specs returns what the claims of a pod that is set up are bound to, by the names of its volumes.
func (m *Manager) Specs(uid types.UID) map[string]Spec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.specs[uid])
}

func (m *Manager) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.specs, uid)
	maps.DeleteFunc(m.looks, func(v volumeOfPod, _ *usageLook) bool { return v.uid == uid })
	maps.DeleteFunc(m.alone, func(_ string, holder types.UID) bool { return holder == uid })
}

// The plugins, as the folders of volumes name them.
const (
	pluginEmptyDir    = "empty-dir"
	pluginConfigMap   = "configmap"
	pluginSecret      = "secret"
	pluginDownwardAPI = "downward-api"
	pluginProjected   = "projected"
	pluginLocal       = "local-volume"
	pluginNFS         = "nfs"
)

// podDir is the folder of a pod. A UID comes from outside: one that is not a plain name is refused.
func (m *Manager) podDir(uid types.UID) (string, error) {
	if !validUID(string(uid)) {
		return "", fmt.Errorf("pod UID %q cannot be the name of a folder; want letters, digits, '-', '_' and '.'", uid)
	}
	return filepath.Join(m.opts.Root, "pods", string(uid)), nil
}

// validUID reports whether a text can be a pod's UID: that excludes names that mean something to the file
// system, as ".." or "lost+found".
func validUID(uid string) bool {
	if uid == "" || len(uid) > 128 || uid[0] == '.' {
		return false
	}
	return strings.IndexFunc(uid, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}) < 0
}

// volumeDir returns where a volume lies, and makes the folders above it.
func (m *Manager) volumeDir(pod *v1.Pod, plugin, name string) (string, error) {
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
		return "", fmt.Errorf("volume name %q is invalid: %s", name, strings.Join(faults, "; "))
	}
	return m.folder(pod, volumesDir, plugin, name)
}

// folder returns where a volume lies, and makes the folders above it.
func (m *Manager) folder(pod *v1.Pod, parent, plugin, name string) (string, error) {
	dir, err := m.podDir(pod.UID)
	if err != nil {
		return "", err
	}
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return "", fmt.Errorf("volume name %q is invalid: %s", name, strings.Join(faults, "; "))
	}
	dir = filepath.Join(dir, parent, pluginDir(plugin))
	return filepath.Join(dir, name), os.MkdirAll(dir, 0o750)
}

func pluginDir(plugin string) string { return "kubernetes.io~" + plugin }

// setupFiles makes a volume of files that the agent fills, and writes them where they differ. Those that may hold a
// secret lie in memory.
func (m *Manager) setupFiles(ctx context.Context, pod *v1.Pod, vol *v1.Volume, left *room) (PodVolume, error) {
	plugin, files, err := m.filesOf(ctx, pod, vol, left)
	if err != nil {
		return PodVolume{}, err
	}
	dir, err := m.volumeDir(pod, plugin, vol.Name)
	if err != nil {
		return PodVolume{}, err
	}
	if err := m.makeFilesDir(pod, plugin, dir); err != nil {
		return PodVolume{}, err
	}
	p := payload{files: files, group: fsGroup(pod), nested: nestedMounts(pod, vol.Name)}
	place := PodVolume{Path: dir, ReadOnly: true}
	for i := range files {
		place.RenewAt = earlier(place.RenewAt, files[i].renewAt)
		if p.group != nil {
			files[i].gid = int(*p.group)
			files[i].mode |= 0o440
		}
	}
	if err := writeAtomically(dir, p); err != nil {
		return PodVolume{}, fmt.Errorf("write %s: %w", dir, err)
	}
	return place, nil
}

// filesOf returns the plugin of a volume that the agent fills, and the files of its source.
func (m *Manager) filesOf(ctx context.Context, pod *v1.Pod, vol *v1.Volume, left *room) (string, []file, error) {
	switch {
	case vol.ConfigMap != nil:
		files, err := m.configMapFiles(ctx, pod.Namespace, configMapSource(vol.ConfigMap, left))
		return pluginConfigMap, files, err
	case vol.Secret != nil:
		files, err := m.secretFiles(ctx, pod.Namespace, secretSource(vol.Secret, left))
		return pluginSecret, files, err
	case vol.DownwardAPI != nil:
		src := vol.DownwardAPI
		files, err := m.downwardFiles(pod, src.Items, defaults{src.DefaultMode, src.DefaultUser, left})
		return pluginDownwardAPI, files, err
	}
	files, err := m.projectedFiles(ctx, pod, vol.Projected, left)
	return pluginProjected, files, err
}

// makeFilesDir makes the folder of a volume that the agent fills: on the disk for configMaps, which change rarely and
// hold no secrets, else in memory, with as much of it as an emptyDir of the pod may have. Its mode is that of an
// emptyDir.
func (m *Manager) makeFilesDir(pod *v1.Pod, plugin, dir string) error {
	src := &v1.EmptyDirVolumeSource{}
	if plugin != pluginConfigMap {
		src.Medium = v1.StorageMediumMemory
	}
	mode, gid := emptyDirAccess(src, fsGroup(pod))
	if src.Medium == v1.StorageMediumMemory {
		if err := ensureTmpfs(dir, tmpfs{
			size: memoryLimit(pod, src, m.opts.MemoryBytes), mode: mode, gid: gid,
		}); err != nil {
			return err
		}
	}
	return ensureDir(dir, mode, gid)
}

// filesFolderMode returns the mode of a folder in a volume that the agent fills.
func filesFolderMode(mode uint32, group *int64) uint32 {
	if group == nil {
		return mode
	}
	return mode | Ownership{ReadOnly: true}.bits(true)
}

// ensureDir makes a folder with a mode, whatever the umask, for a group, and does not touch one that has them.
func ensureDir(dir string, mode os.FileMode, gid int) error {
	if err := os.Mkdir(dir, mode.Perm()); err != nil && !os.IsExist(err) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%s is not a folder; remove it", dir)
	}
	if int(st.Gid) != gid {
		if err := os.Lchown(dir, -1, gid); err != nil {
			return err
		}
	}
	if bits := modeBits(mode); st.Mode&0o7777 != bits {
		return unix.Chmod(dir, bits)
	}
	return nil
}

func fsGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// Pods returns the UIDs of the pods that have a folder.
func (m *Manager) Pods() ([]types.UID, error) {
	entries, err := readdir.Quiet(filepath.Join(m.opts.Root, "pods"))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() && validUID(e.Name()) {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

// notFound puts the error of a missing object into the kubelet's words: configmap "x" not found.
func notFound(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(v1.Resource(kind), name)
	}
	return fmt.Errorf("%s %q: %w", kind, name, err)
}
