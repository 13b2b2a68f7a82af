package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
)

// This file is what keeps pods, the system and the agent from taking what is the others': "Reserve Compute Resources
// for System Daemons" in the Kubernetes documentation.

// unlimited takes a limit away that was set before.
const unlimited = -1

// Reserved is a cgroup that the administrator created, and its limits.
type Reserved struct {
	// Key is the configuration's for it, for messages.
	Key string
	// Cgroup is its path from the top, whatever Root is, or for systemd the name of its slice.
	Cgroup    string
	Resources Resources
}

// LimitError says which limits of the node's parts are not in force.
type LimitError struct{ err error }

func (e *LimitError) Error() string { return e.err.Error() }
func (e *LimitError) Unwrap() error { return e.err }

// limit sets the limits of all pods together, and those of the reserved cgroups. A missing one keeps nothing else from
// being set. The caller has the lock.
func (m *Manager) limit(missing []string) error {
	var errs []error
	pods := m.classPath(v1.PodQOSGuaranteed)
	if err := m.apply(pods, offered(orUnlimited(m.opts.Pods), missing)); err != nil {
		errs = append(errs, fmt.Errorf("cgroup %s: %w", pods.cgroupfs(), err))
	}
	for _, r := range m.opts.Reserved {
		p := m.parsePath(r.Cgroup)
		if !m.exists(p) {
			errs = append(errs,
				fmt.Errorf("%s: cgroup %s does not exist; create it, or remove its entry from "+
					"enforceNodeAllocatable", r.Key,
					r.Cgroup))
			continue
		}
		if err := m.change(p, offered(r.Resources, missing)); err != nil {
			errs = append(errs, fmt.Errorf("%s: cgroup %s: %w", r.Key, p.cgroupfs(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &LimitError{err}
	}
	return nil
}

// orUnlimited makes limits that are not set explicitly unlimited, so that an earlier limit is removed.
func orUnlimited(r Resources) Resources {
	if r.Memory == 0 {
		r.Memory = unlimited
	}
	if r.Pids == 0 {
		r.Pids = unlimited
	}
	return r
}

// change sets values of a cgroup that is there.
func (m *Manager) change(p path, r Resources) error {
	lib, err := m.manager(p, r)
	if err != nil {
		return err
	}
	return lib.Set(m.resources(r))
}

// parsePath reads the path of a cgroup: "/a/b", or for systemd the name of a slice such as "a-b.slice", too.
func (m *Manager) parsePath(text string) path {
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == '/' })
	if m.opts.Driver != DriverSystemd || len(parts) == 0 {
		return parts
	}
	if name, ok := strings.CutSuffix(parts[len(parts)-1], ".slice"); ok {
		return strings.Split(name, "-")
	}
	return parts
}

// PodsMemcg is the folder of the cgroup of all pods in the memory hierarchy of cgroup v1; "" where there is none.
func (m *Manager) PodsMemcg() string {
	if !m.opts.PerQOS || cgroups.IsCgroup2UnifiedMode() {
		return ""
	}
	return m.podsDir("memory")
}

// NodeMemcg is the folder of the whole node there.
func (m *Manager) NodeMemcg() string { return filepath.Join(mountpoint, "memory") }

// PodsPressure is the memory.pressure file of the cgroup of all pods on cgroup v2; "" if it does not exist.
func (m *Manager) PodsPressure() string {
	if !m.opts.PerQOS || !cgroups.IsCgroup2UnifiedMode() {
		return ""
	}
	return filepath.Join(m.podsDir(""), "memory.pressure")
}

// podsDir is the folder of the cgroup of all pods in a hierarchy.
func (m *Manager) podsDir(hierarchy string) string {
	p := m.classPath(v1.PodQOSGuaranteed)
	rel := p.cgroupfs()
	if m.opts.Driver == DriverSystemd {
		rel = p.systemdDir()
	}
	return filepath.Join(mountpoint, hierarchy, rel)
}

// readValue reads a number of a cgroup; "max" is 0.
func readValue(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	word := strings.TrimSpace(string(text))
	if word == "max" {
		return 0, nil
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// MaxPIDs is how many processes and threads the kernel has room for, 0 where it does not say.
func MaxPIDs() int64 {
	var least int64
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		if n, err := readValue(file); err == nil && n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}
