package cgroups

import (
	"path/filepath"
	"strings"

	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
)

// Dirs are the folders of a cgroup.
type Dirs struct {
	// Path is where it lies below the top: "/kubepods/burstable/pod<uid>".
	Path string
	// Unified is its folder where there is one hierarchy; "" with those of v1, which Of holds by controller.
	Unified string
	Of      map[string]string
}

// Dir is the folder that has the files of a controller; "" where there is none.
func (d *Dirs) Dir(controller string) string {
	if d.Unified != "" {
		return d.Unified
	}
	return d.Of[controller]
}

// Child is a cgroup below.
func (d *Dirs) Child(name string) Dirs {
	c := Dirs{Path: d.Path + "/" + name}
	if d.Unified != "" {
		c.Unified = filepath.Join(d.Unified, name)
		return c
	}
	c.Of = make(map[string]string, len(d.Of))
	for controller, dir := range d.Of {
		c.Of[controller] = filepath.Join(dir, name)
	}
	return c
}

// PodDirs are the folders of a pod's cgroup, whether they are there or not; ok is false where pods have none of their
// own.
func (m *Manager) PodDirs(pod *v1.Pod) (d Dirs, ok bool) {
	if !m.opts.PerQOS || checkUID(pod.UID) != nil {
		return Dirs{}, false
	}
	return m.controllers(m.podPath(pod)), true
}

// PodsDirs are the folders of the cgroup above all pods; ok is false where there is none.
func (m *Manager) PodsDirs() (d Dirs, ok bool) {
	if !m.opts.PerQOS {
		return Dirs{}, false
	}
	return m.controllers(m.classPath(v1.PodQOSGuaranteed)), true
}

// controllers finds the folders of a cgroup by controller.
func (m *Manager) controllers(p path) Dirs {
	d := Dirs{Path: p.cgroupfs()}
	if m.opts.Driver == DriverSystemd {
		d.Path = p.systemdDir()
	}
	dirs := m.dirs(p)
	if cgroups.IsCgroup2UnifiedMode() {
		d.Unified = dirs[0]
		return d
	}
	d.Of = make(map[string]string, len(dirs))
	for _, dir := range dirs {
		hierarchy := strings.TrimSuffix(strings.TrimPrefix(dir, mountpoint+"/"), d.Path)
		for controller := range strings.SplitSeq(hierarchy, ",") {
			d.Of[controller] = dir
		}
	}
	return d
}
