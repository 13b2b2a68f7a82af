// Package volume puts a pod's volumes in place on the node and takes them away again: emptyDir,
// hostPath, configMap, secret, downwardAPI, and projected volumes of those. Folders lie where the kubelet
// has them, <root>/pods/<uid>/volumes/kubernetes.io~<plugin>/<name>.
//
// Setup may be called at any time, and again: it makes what is missing and brings the content of
// configMaps and secrets up to date, in one step for each volume, writing only what differs.
// Secrets lie in memory (tmpfs), never on flash. Teardown removes what is below the pod's folder and
// never anything else: it does not cross a mount, follow a link, or remove while something is mounted.
package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Objects gives the content of volumes. apierrors.IsNotFound tells a missing object.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
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
	Fields  Fields
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

// Setup puts all volumes of a pod in place and returns their paths. The first that fails is the error.
func (m *Manager) Setup(ctx context.Context, pod *v1.Pod) (Volumes, error) {
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
		files, err := m.configMapFiles(ctx, pod, vol.ConfigMap)
		return m.setupFiles(pod, vol, "configmap", false, files, err)
	case vol.Secret != nil:
		files, err := m.secretFiles(ctx, pod, vol.Secret)
		return m.setupFiles(pod, vol, "secret", true, files, err)
	case vol.DownwardAPI != nil:
		files, err := m.downwardFiles(pod, vol.DownwardAPI.Items, vol.DownwardAPI.DefaultMode)
		return m.setupFiles(pod, vol, "downward-api", false, files, err)
	case vol.Projected != nil:
		files, err := m.projectedFiles(ctx, pod, vol.Projected)
		return m.setupFiles(pod, vol, "projected", true, files, err)
	}
	return "", fmt.Errorf("volume type %s is not supported by this node", Type(vol))
}

// Type names the kind of a volume as its spec does.
func Type(vol *v1.Volume) string {
	kinds := map[string]bool{
		"persistentVolumeClaim": vol.PersistentVolumeClaim != nil, "csi": vol.CSI != nil, "nfs": vol.NFS != nil, "iscsi": vol.ISCSI != nil,
		"ephemeral": vol.Ephemeral != nil, "image": vol.Image != nil, "fc": vol.FC != nil, "gitRepo": vol.GitRepo != nil, "cephfs": vol.CephFS != nil,
		"rbd": vol.RBD != nil, "glusterfs": vol.Glusterfs != nil, "flexVolume": vol.FlexVolume != nil, "azureFile": vol.AzureFile != nil,
		"azureDisk": vol.AzureDisk != nil, "vsphereVolume": vol.VsphereVolume != nil, "awsElasticBlockStore": vol.AWSElasticBlockStore != nil,
		"gcePersistentDisk": vol.GCEPersistentDisk != nil, "cinder": vol.Cinder != nil, "portworxVolume": vol.PortworxVolume != nil,
	}
	for name, is := range kinds {
		if is {
			return name
		}
	}
	return "unknown"
}

// podDir is the folder of a pod. A UID comes from outside: one that is no plain name is refused.
func (m *Manager) podDir(uid types.UID) (string, error) {
	name := string(uid)
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("pod UID %q is no name of a folder", uid)
	}
	return filepath.Join(m.opts.Root, "pods", name), nil
}

// volumeDir makes the folder of a volume and returns its path.
func (m *Manager) volumeDir(pod *v1.Pod, plugin, name string) (string, error) {
	dir, err := m.podDir(pod.UID)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "volumes", "kubernetes.io~"+plugin, name)
	return dir, os.MkdirAll(dir, 0o750)
}

// setupFiles writes the files of a volume that the agent itself fills.
func (m *Manager) setupFiles(pod *v1.Pod, vol *v1.Volume, plugin string, inMemory bool, files []file, err error) (string, error) {
	if err != nil {
		return "", err
	}
	dir, err := m.volumeDir(pod, plugin, vol.Name)
	if err != nil {
		return "", err
	}
	if inMemory {
		if err := ensureTmpfs(dir, 0); err != nil {
			return "", err
		}
	}
	if group := fsGroup(pod); group != nil {
		for i := range files {
			files[i].gid = int(*group)
			files[i].mode |= 0o440
		}
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		return "", err
	}
	return dir, writeAtomically(dir, files)
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
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

// Kind is a kind of object that pods refer to.
type Kind string

// The kinds.
const (
	KindConfigMap Kind = "configmap"
	KindSecret    Kind = "secret"
)

// Refers tells whether a pod names an object of a kind, in whatever place a pod can: volumes,
// environments of all kinds of containers, pull secrets.
func Refers(pod *v1.Pod, kind Kind, name string) bool {
	return slices.Contains(References(pod, kind), name)
}

// References returns the names of all objects of a kind that a pod refers to.
func References(pod *v1.Pod, kind Kind) []string {
	var names []string
	add := func(k Kind, name string) {
		if k == kind && name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add(KindSecret, s.Name)
	}
	for i := range pod.Spec.Volumes {
		volumeReferences(&pod.Spec.Volumes[i], add)
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			envReferences(list[i].Env, list[i].EnvFrom, add)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		envReferences(c.Env, c.EnvFrom, add)
	}
	return names
}

func volumeReferences(vol *v1.Volume, add func(Kind, string)) {
	if vol.ConfigMap != nil {
		add(KindConfigMap, vol.ConfigMap.Name)
	}
	if vol.Secret != nil {
		add(KindSecret, vol.Secret.SecretName)
	}
	if vol.CSI != nil && vol.CSI.NodePublishSecretRef != nil {
		add(KindSecret, vol.CSI.NodePublishSecretRef.Name)
	}
	if vol.Projected == nil {
		return
	}
	for _, s := range vol.Projected.Sources {
		if s.ConfigMap != nil {
			add(KindConfigMap, s.ConfigMap.Name)
		}
		if s.Secret != nil {
			add(KindSecret, s.Secret.Name)
		}
	}
}

func envReferences(env []v1.EnvVar, from []v1.EnvFromSource, add func(Kind, string)) {
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add(KindConfigMap, r.Name)
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add(KindSecret, r.Name)
		}
	}
	for _, f := range from {
		if f.ConfigMapRef != nil {
			add(KindConfigMap, f.ConfigMapRef.Name)
		}
		if f.SecretRef != nil {
			add(KindSecret, f.SecretRef.Name)
		}
	}
}
