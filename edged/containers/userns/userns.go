// Package userns gives each pod that wants a user namespace (hostUsers: false) a range of 65,536 user and group ids of
// the node that no other pod has. A range is written into the pod's folder before it is used, in the kubelet's file
// and form, and read back from there: a pod has one range as long as its folder exists, over restarts of the agent.
// Ids of the node itself, below 65,536, are never given away.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// Length is how many ids a pod gets.
const Length = 65536

// fileName is the kubelet's.
const fileName = "userns"

// maxFile bounds what is read: a file of one mapping has about 150 bytes.
const maxFile = 64 << 10

// Options say where ranges come from and where they are kept.
type Options struct {
	// PodsDir is the folder of the pods' folders.
	PodsDir string
	// Subuid and Subgid are the files that say which ids a user may give away; empty is /etc/subuid and /etc/subgid.
	// Without lines for the user "kubelet" all ids of the node but the first 65,536 are shared out.
	Subuid, Subgid string
}

// Manager shares the ranges out. Its methods may be called from any goroutine.
type Manager struct {
	opts Options

	mu sync.Mutex
	// loaded: the ranges of all pods on the disk are known.
	loaded bool
	pool   pool
	taken  map[types.UID]uint32 // the first id
}

// New makes a Manager; it reads nothing yet.
func New(opts Options) *Manager {
	if opts.Subuid == "" {
		opts.Subuid = "/etc/subuid"
	}
	if opts.Subgid == "" {
		opts.Subgid = "/etc/subgid"
	}
	return &Manager{opts: opts}
}

// mapping is one line of the file, in the kubelet's words.
type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type document struct {
	UIDMappings []mapping `json:"uidMappings"`
	GIDMappings []mapping `json:"gidMappings"`
}

// For returns the mappings of a pod, whose folder exists: those that it has, or new ones that are on the disk then.
func (m *Manager) For(uid types.UID) (*runtimeapi.UserNamespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.load(); err != nil {
		return nil, err
	}
	if first, ok := m.taken[uid]; ok {
		return namespace(first), nil
	}
	// One that cannot be read may be in use: another beside it would give the pod's files away.
	first, err := read(m.path(uid))
	if errors.Is(err, os.ErrNotExist) {
		if first, err = m.pool.free(m.taken); err == nil {
			err = write(m.path(uid), first)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("user namespace of the pod: %w", err)
	}
	m.taken[uid] = first
	return namespace(first), nil
}

// Release gives a pod's range back; nothing of the pod may run any more.
func (m *Manager) Release(uid types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := os.Remove(m.path(uid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("user namespace of the pod: %w", err)
	}
	delete(m.taken, uid)
	return nil
}

func (m *Manager) path(uid types.UID) string {
	return filepath.Join(m.opts.PodsDir, string(uid), fileName)
}

// load learns once which ranges are taken.
func (m *Manager) load() error {
	if m.loaded {
		return nil
	}
	p, err := readPool(m.opts.Subuid, m.opts.Subgid)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(m.opts.PodsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("user namespaces of pods: %w", err)
	}
	taken := map[types.UID]uint32{}
	for _, e := range entries {
		first, err := read(filepath.Join(m.opts.PodsDir, e.Name(), fileName))
		switch {
		case err == nil:
			taken[types.UID(e.Name())] = first
		case !errors.Is(err, os.ErrNotExist):
			klog.ErrorS(err, "User namespace of a pod is unknown; remove the pod", "podUID", e.Name())
		}
	}
	m.pool, m.taken, m.loaded = p, taken, true
	return nil
}

func namespace(first uint32) *runtimeapi.UserNamespace {
	ids := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: first, ContainerId: 0, Length: Length}}
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids(), Gids: ids()}
}

// read returns the first id of a pod's file.
func read(path string) (uint32, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return 0, fmt.Errorf("%s does not describe a user namespace; remove it when nothing of the pod runs", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	first, err := decode(data)
	if err != nil {
		return 0, fmt.Errorf("%s: %w; remove it when nothing of the pod runs", path, err)
	}
	return first, nil
}

// decode reads a file's content: one mapping of 65,536 ids onto those from 0, the same for users and groups.
func decode(data []byte) (uint32, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return 0, err
	}
	if len(d.UIDMappings) != 1 || len(d.GIDMappings) != 1 || d.UIDMappings[0] != d.GIDMappings[0] {
		return 0, errors.New("want one mapping of users, and the same of groups")
	}
	got := d.UIDMappings[0]
	if got.ContainerID != 0 || got.Length != Length || got.HostID < Length || got.HostID > math.MaxUint32-Length {
		return 0, fmt.Errorf("want %d ids of the node from %d on, mapped onto those from 0", Length, Length)
	}
	return got.HostID, nil
}

// write puts a pod's file in place as a whole: a power cut leaves it or none.
func write(path string, first uint32) error {
	ids := []mapping{{HostID: first, Length: Length}}
	data, err := json.Marshal(document{ids, ids})
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
