package cgroups

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
)

// path is where a cgroup lies, part by part below the top, without the decoration of a driver:
// {"kubepods", "burstable", "pod<uid>"}.
type path []string

// cgroupfs is the path as files have it: "/kubepods/burstable/pod<uid>".
func (p path) cgroupfs() string { return "/" + strings.Join(p, "/") }

// slice is the name that systemd has for it: "kubepods-burstable-pod<uid>.slice", in which a '-' goes
// one level down, so that those within a part become '_'.
func (p path) slice() string {
	if len(p) == 0 {
		return "-.slice"
	}
	escaped := make([]string, len(p))
	for i, part := range p {
		escaped[i] = strings.ReplaceAll(part, "-", "_")
	}
	return strings.Join(escaped, "-") + ".slice"
}

// systemdDir is the directory of that slice: each level repeats the ones above it.
func (p path) systemdDir() string {
	dir := ""
	for i := range p {
		dir += "/" + p[:i+1].slice()
	}
	return dir
}

func (p path) parent() path { return p[:max(len(p)-1, 0)] }

// join returns a longer path, leaving p as it is.
func (p path) join(parts ...string) path {
	return append(p[:len(p):len(p)], parts...)
}

func (m *Manager) root() path {
	return strings.FieldsFunc(m.opts.Root, func(r rune) bool { return r == '/' })
}

// classPath is where the pods of a class are; Guaranteed ones have no group of their own.
func (m *Manager) classPath(class v1.PodQOSClass) path {
	p := m.root().join(kubepods)
	if class == v1.PodQOSGuaranteed || class == "" {
		return p
	}
	return p.join(strings.ToLower(string(class)))
}

func (m *Manager) podPath(pod *v1.Pod) path { return m.podOf(admission.QOS(pod), pod.UID) }

func (m *Manager) podOf(class v1.PodQOSClass, uid types.UID) path {
	return m.classPath(class).join(podPrefix + string(uid))
}

// checkUID refuses a UID that is not a plain directory name. UIDs also come from the runtime's labels, and the
// directory at a pod's path is emptied and removed.
func checkUID(uid types.UID) error {
	if uid == "" || strings.ContainsAny(string(uid), "/\x00") || strings.Contains(string(uid), "..") {
		return fmt.Errorf("pod UID %q cannot name a cgroup: it must not be empty nor have '/' or \"..\" in it", uid)
	}
	return nil
}

// podUID reads the UID from the name of a directory below that of a class.
func (m *Manager) podUID(class v1.PodQOSClass, name string) (types.UID, bool) {
	if m.opts.Driver == DriverSystemd {
		prefix := strings.TrimSuffix(m.classPath(class).slice(), ".slice") + "-"
		rest, ok := strings.CutPrefix(name, prefix)
		rest, slice := strings.CutSuffix(rest, ".slice")
		if !ok || !slice {
			return "", false
		}
		name = strings.ReplaceAll(rest, "_", "-")
	}
	uid, ok := strings.CutPrefix(name, podPrefix)
	return types.UID(uid), ok && uid != ""
}

// parent is what CRI calls the cgroup_parent of what runs in p.
func (m *Manager) parent(p path) string {
	if m.opts.Driver == DriverSystemd {
		return p.slice()
	}
	return p.cgroupfs()
}
