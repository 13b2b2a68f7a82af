// Package volume puts a pod's volumes in place on the node and takes them away again: emptyDir,
// hostPath, configMap, secret, downwardAPI, and projected volumes of those and of service account tokens. Folders lie where the kubelet
// has them, <root>/pods/<uid>/volumes/kubernetes.io~<plugin>/<name>.
//
// Setup may be called at any time, and again: it makes what is missing and brings the content of
// configMaps and secrets up to date, in one step for each volume. Where nothing differs it writes nothing,
// not even a time stamp. What containers did to an emptyDir stays. Secrets lie in memory (tmpfs, kept out
// of swap where the kernel can), never on flash.
//
// Teardown removes what is below the pod's folder and never anything else: it does not cross a mount,
// follow a link, or remove while something is mounted. Both may be killed at any point and called again.
package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Objects gives the content of volumes. apierrors.IsNotFound tells a missing object.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gives the tokens of service accounts.
type Tokens interface {
	Token(ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection) (string, error)
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
	// MemoryBytes is the node's allocatable memory: what an emptyDir in memory may grow to when neither
	// it nor its pod has a limit. 0 leaves it to the kernel (half of the memory).
	MemoryBytes int64
}

// Manager sets volumes up. Its methods may be called for different pods at once.
type Manager struct {
	opts Options
}

// New makes a Manager.
func New(opts Options) *Manager { return &Manager{opts: opts} }

// Volumes maps the name of each volume of a pod to its path on the node.
type Volumes map[string]string

// Error is a volume that could not be set up, in the words of the event that tells it.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Setup puts all volumes of a pod in place and returns their paths. The first that fails is the error; a
// pod with a volume that this node cannot have gets nothing at all.
func (m *Manager) Setup(ctx context.Context, pod *v1.Pod) (Volumes, error) {
	if err := Unsupported(pod); err != nil {
		return nil, err
	}
	vols := Volumes{}
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		path, err := m.setup(ctx, pod, vol)
		if err != nil {
			return nil, &Error{vol.Name, err}
		}
		vols[vol.Name] = path
	}
	return vols, nil
}

func (m *Manager) setup(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (string, error) {
	switch {
	case vol.HostPath != nil:
		return vol.HostPath.Path, checkHostPath(vol.HostPath)
	case vol.EmptyDir != nil:
		return m.setupEmptyDir(pod, vol)
	case vol.ConfigMap != nil:
		files, err := m.configMapFiles(ctx, pod.Namespace, configMapSource(vol.ConfigMap))
		return m.setupFiles(pod, vol, pluginConfigMap, files, err)
	case vol.Secret != nil:
		files, err := m.secretFiles(ctx, pod.Namespace, secretSource(vol.Secret))
		return m.setupFiles(pod, vol, pluginSecret, files, err)
	case vol.DownwardAPI != nil:
		files, err := m.downwardFiles(pod, vol.DownwardAPI.Items, vol.DownwardAPI.DefaultMode)
		return m.setupFiles(pod, vol, pluginDownwardAPI, files, err)
	case vol.Projected != nil:
		files, err := m.projectedFiles(ctx, pod, vol.Projected)
		return m.setupFiles(pod, vol, pluginProjected, files, err)
	}
	return "", fmt.Errorf("volume type %s is not supported", Type(vol)) // Unsupported has said so before
}

// The plugins, as the folders of volumes name them.
const (
	pluginEmptyDir    = "empty-dir"
	pluginConfigMap   = "configmap"
	pluginSecret      = "secret"
	pluginDownwardAPI = "downward-api"
	pluginProjected   = "projected"
)

// podDir is the folder of a pod. A UID comes from outside: one that is no plain name is refused.
func (m *Manager) podDir(uid types.UID) (string, error) {
	if !validUID(string(uid)) {
		return "", fmt.Errorf("pod UID %q cannot be the name of a folder; want letters, digits, '-', '_' and '.'", uid)
	}
	return filepath.Join(m.opts.Root, "pods", string(uid)), nil
}

// validUID tells whether a text can be a pod's UID: that excludes names that mean something to the file
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
	dir, err := m.podDir(pod.UID)
	if err != nil {
		return "", err
	}
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
		return "", fmt.Errorf("volume name %q is invalid: %s", name, strings.Join(faults, "; "))
	}
	dir = filepath.Join(dir, "volumes", "kubernetes.io~"+plugin)
	return filepath.Join(dir, name), os.MkdirAll(dir, 0o750)
}

// setupFiles writes the files of a volume that the agent itself fills. Those that may hold a secret lie in
// memory.
func (m *Manager) setupFiles(pod *v1.Pod, vol *v1.Volume, plugin string, files []file, err error) (string, error) {
	if err != nil {
		return "", err
	}
	dir, err := m.volumeDir(pod, plugin, vol.Name)
	if err != nil {
		return "", err
	}
	mode := os.FileMode(0o777)
	if plugin == pluginSecret || plugin == pluginProjected {
		mode |= os.ModeSticky
		err = ensureTmpfs(dir, tmpfs{mode: mode})
	} else {
		err = ensureDir(dir, mode)
	}
	if err != nil {
		return "", err
	}
	if group := fsGroup(pod); group != nil {
		for i := range files {
			files[i].gid = int(*group)
			files[i].mode |= 0o440
		}
	}
	if err := writeAtomically(dir, files); err != nil {
		return "", fmt.Errorf("write %s: %w", dir, err)
	}
	return dir, nil
}

// ensureDir makes a folder with a mode, whatever the umask, and does not touch one that has it.
func ensureDir(dir string, mode os.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is in the way: it is no folder; remove it", dir)
	}
	const bits = os.ModePerm | os.ModeSticky | os.ModeSetgid | os.ModeSetuid
	if info.Mode()&bits == mode&bits {
		return nil
	}
	return os.Chmod(dir, mode)
}

func fsGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// Pods returns the UIDs of the pods that have a folder.
func (m *Manager) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(m.opts.Root, "pods"))
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
