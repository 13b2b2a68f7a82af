package devices

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/clock"
)

// fileName is the file of allocations. fileVersion is the form of its content, and fileReader the oldest version whose
// agents can read it.
const (
	fileName    = "edgecore_allocations.json"
	fileVersion = 1
	fileReader  = 1
	// maxFile bounds what is read: no file of ours is larger.
	maxFile = 64 << 20
)

// content is what the file says.
type content struct {
	Version int `json:"version"`
	// Reader is the oldest Version whose agents can read the file: a version that only adds fields leaves it, so that
	// an older agent keeps the allocations after a downgrade. 0 is Version.
	Reader int `json:"oldestReader,omitempty"`
	// Resources are those that plugins have registered.
	Resources []string `json:"resources,omitempty"`
	// Pods are the allocations.
	Pods allocations `json:"pods,omitempty"`
}

// load takes over what the file says. A file that cannot be read is set aside: pods that run keep running, and
// their containers get devices again when they start again.
func (m *Manager) load() {
	m.allocated = allocations{}
	data, err := readFile(m.path(fileName))
	if errors.Is(err, fs.ErrNotExist) {
		m.forgotten = true
		return
	}
	var c content
	if err == nil {
		c, err = decode(data)
	}
	if err != nil {
		aside := m.path(fileName) + ".corrupt"
		m.forgotten = true
		klog.ErrorS(err, "Device allocations are lost; the file is set aside",
			"file", m.path(fileName), "aside", aside)
		if err := os.Rename(m.path(fileName), aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.ErrorS(err, "File not set aside", "file", m.path(fileName))
		}
		return
	}
	if c.Pods != nil {
		m.allocated = c.Pods
	}
	m.saved = data
	for _, name := range c.Resources {
		// Known, with a capacity of 0 until its plugin is back.
		m.resources[name] = &pool{ended: time.Now()}
	}
	for _, containers := range m.allocated {
		for _, resources := range containers {
			for name := range resources {
				m.resources[name] = &pool{ended: time.Now()}
			}
		}
	}
}

func readFile(name string) ([]byte, error) {
	if info, err := os.Stat(name); err != nil {
		return nil, err
	} else if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes: more than %d is not a file of this agent", name, info.Size(), maxFile)
	}
	return os.ReadFile(name)
}

// decode reads the content of the file.
func decode(data []byte) (content, error) {
	var c content
	if err := json.Unmarshal(data, &c); err != nil {
		return content{}, fmt.Errorf("file of allocations: %w", err)
	}
	if c.Version < 1 || c.Version > fileVersion && (c.Reader < 1 || c.Reader > fileVersion) {
		return content{}, fmt.Errorf("file of allocations: version %d cannot be read by this agent, which writes %d",
			c.Version, fileVersion)
	}
	for uid, containers := range c.Pods {
		for container, resources := range containers {
			for name, g := range resources {
				if g == nil || len(g.IDs) == 0 {
					return content{}, fmt.Errorf("file of allocations: pod %s, container %s: no devices of %s", uid,
						container, name)
				}
			}
		}
	}
	return c, nil
}

// Forgotten reports whether this device does not know which resources plugins have registered on it before: it is new,
// or has lost its file.
func (m *Manager) Forgotten() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forgotten
}

// Remember ends that: the cluster knows that the earlier resources are gone. From now on there is a file.
func (m *Manager) Remember() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.forgotten {
		return
	}
	if m.saved == nil {
		data, err := json.Marshal(content{Version: fileVersion, Reader: fileReader})
		if err == nil {
			err = m.write(data)
		}
		if err != nil {
			klog.V(2).InfoS("Removal of the previous devices not recorded yet; trying again", "err", err)
			return
		}
	}
	m.forgotten = false
}

// save writes the file if it does not say what it should. The lock is held.
func (m *Manager) save() error {
	c := content{Version: fileVersion, Reader: fileReader, Pods: allocations{}}
	for name, p := range m.resources {
		if m.serves(p) {
			c.Resources = append(c.Resources, name)
		}
	}
	slices.Sort(c.Resources)
	for uid, containers := range m.allocated {
		for container, resources := range containers {
			for name, g := range resources {
				if g.Answer != nil {
					c.Pods.setGrant(uid, container, name, g)
				}
			}
		}
	}
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if bytes.Equal(data, m.saved) || (m.saved == nil && len(c.Resources)+len(c.Pods) == 0) {
		return nil
	}
	return m.write(data)
}

// write writes the file. The lock is held.
func (m *Manager) write(data []byte) error {
	if err := writeFile(m.path(fileName), data); err != nil {
		return fmt.Errorf("file of allocations: %w", err)
	}
	m.saved = data
	return nil
}

// writeFile replaces a file in one step, and returns when that is on the disk.
func writeFile(name string, data []byte) (err error) {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	tmp := name + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, name); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// allocations are what containers have: by pod, container and resource.
type allocations map[types.UID]map[string]map[string]*grant

// grant is the devices of one resource that one container has.
type grant struct {
	IDs []string `json:"ids"`
	// NUMA are the nodes of a device, of those that have some.
	NUMA map[string][]int64 `json:"numa,omitempty"`
	// Answer is what the plugin said to Allocate; nil while it has not.
	Answer *Answer `json:"answer,omitempty"`
	// PreStart: the plugin wants to be asked before each start of the container.
	PreStart bool `json:"preStart,omitempty"`
	// Boot is the boot of the machine in which the plugin answered.
	Boot string `json:"boot,omitempty"`
}

func (a allocations) setGrant(uid types.UID, container, name string, g *grant) {
	if a[uid] == nil {
		a[uid] = map[string]map[string]*grant{}
	}
	if a[uid][container] == nil {
		a[uid][container] = map[string]*grant{}
	}
	a[uid][container][name] = g
}

// usedDevices are the devices of a resource that pods have.
func (a allocations) usedDevices(name string) map[string]bool {
	used := map[string]bool{}
	for containers := range maps.Values(a) {
		for resources := range maps.Values(containers) {
			if g := resources[name]; g != nil {
				for _, id := range g.IDs {
					used[id] = true
				}
			}
		}
	}
	return used
}

// currentBoot returns the ID of this boot; "" if it is not known.
func currentBoot() string {
	boot, err := clock.ReadBoot()
	if err != nil {
		return ""
	}
	return boot.ID
}
