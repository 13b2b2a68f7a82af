// Package cgroups keeps the cgroups above the containers: <root>/kubepods, a group for each of the
// Burstable and BestEffort classes, and one for each pod, under the names that the kubelet gives them.
// cgroup v1, v2 and hybrid, by files or through systemd, are the business of opencontainers/cgroups.
//
// It owns what is below its root and nothing else, so that two agents with different roots on one
// machine never meet. Every operation may be repeated, also after a crash in its middle.
package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Drivers that a node may be told to use; it has to be the runtime's.
const (
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"
)

const (
	mountpoint = "/sys/fs/cgroup"
	kubepods   = "kubepods"
	podPrefix  = "pod"
	// removeWait is how long a pod's processes may take to exit after SIGKILL: on a busy machine they wait for CPU
	// time.
	removeWait = 10 * time.Second
)

// Options configure a Manager.
type Options struct {
	// Root is the cgroup under which all is made; empty or "/" is the top.
	Root string
	// Driver is DriverCgroupfs or DriverSystemd; empty is cgroupfs.
	Driver string
	// PerQOS puts pods below kubepods and its classes. Without it there are no pod cgroups.
	PerQOS bool
	// PodPids limits the processes of a pod; 0 or less is no limit.
	PodPids int64
	// Pods limits all pods together; zero values, and no PerQOS, are no limit.
	Pods Resources
	// Reserved are cgroups of others that are given limits.
	Reserved []Reserved
	ResourceOptions
}

// Manager makes and removes pod cgroups. Its methods may be called from any goroutine.
type Manager struct {
	opts Options

	mu sync.Mutex
	// pods are those whose cgroups are there, for the shares of their class.
	pods map[types.UID]*v1.Pod
	// classShares is what the Burstable class was last given.
	classShares uint64
	kernel      kernel
}

// New makes a Manager; Setup comes next.
func New(opts Options) *Manager {
	if opts.Driver == "" {
		opts.Driver = DriverCgroupfs
	}
	return &Manager{opts: opts, pods: map[types.UID]*v1.Pod{}, kernel: probeKernel()}
}

// MissingError says which controllers the kernel does not offer; pods run without what they limit.
type MissingError struct{ Controllers []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("the kernel offers no %s cgroup: limits on it are not enforced (on a Raspberry Pi, add "+
		"cgroup_enable=%s to the kernel's command line)",
		strings.Join(e.Controllers, " and no "), e.Controllers[0])
}

// Setup makes the groups of the classes. A MissingError is not fatal. Setup may be called after the first pods have
// started, and repeatedly: the Burstable class gets the shares of the existing pods.
func (m *Manager) Setup(context.Context) error {
	if !m.opts.PerQOS {
		return nil
	}
	missing := missingControllers(mountpoint)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		r := Resources{}
		switch class {
		case v1.PodQOSBurstable:
			r.CPUShares = burstableShares(mapValues(m.pods))
		case v1.PodQOSBestEffort:
			r.CPUShares = minShares
		}
		if err := m.apply(m.classPath(class), r); err != nil {
			return fmt.Errorf("cgroup %s: %w", m.classPath(class).cgroupfs(), err)
		}
		if class == v1.PodQOSBurstable {
			m.classShares = r.CPUShares
		}
	}
	// The classes' groups are there now: in a container they may be the first below the top that show what the kernel
	// can do.
	m.kernel = probeKernel()
	if err := m.limit(missing); err != nil {
		return err
	}
	if len(missing) > 0 {
		return &MissingError{missing}
	}
	return nil
}

// EnsurePod makes a pod's cgroup with its limits.
func (m *Manager) EnsurePod(pod *v1.Pod) error {
	if !m.opts.PerQOS {
		return nil
	}
	if err := checkUID(pod.UID); err != nil {
		return err
	}
	if m.Has(pod) {
		return nil
	}
	m.mu.Lock()
	missing := m.kernel.missing
	m.mu.Unlock()
	return m.set(pod, missing)
}

// Has reports whether EnsurePod has made a pod's cgroup, and the cgroup exists.
func (m *Manager) Has(pod *v1.Pod) bool {
	m.mu.Lock()
	_, made := m.pods[pod.UID]
	m.mu.Unlock()
	return made && m.exists(m.podPath(pod))
}

// ResizePod gives the cgroup of a pod that runs other limits.
func (m *Manager) ResizePod(pod *v1.Pod) error {
	if !m.opts.PerQOS || !m.exists(m.podPath(pod)) {
		return nil
	}
	m.mu.Lock()
	missing := m.kernel.missing
	m.mu.Unlock()
	return m.set(pod, missing)
}

// set makes a pod's cgroup as the pod wants it.
func (m *Manager) set(pod *v1.Pod, missing []string) error {
	r := offered(PodResources(pod, m.opts.ResourceOptions, max(m.opts.PodPids, 0)), missing)
	if len(r.Huge) > 0 && !hugetlb(mountpoint) {
		r.Huge = nil
	}
	if err := m.apply(m.podPath(pod), r); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[pod.UID] = pod
	return m.updateClass()
}

// updateClass gives the Burstable class the shares of its pods.
func (m *Manager) updateClass() error {
	shares := burstableShares(mapValues(m.pods))
	if shares == m.classShares {
		return nil
	}
	if err := m.apply(m.classPath(v1.PodQOSBurstable), Resources{CPUShares: shares}); err != nil {
		return err
	}
	m.classShares = shares
	return nil
}

// PodParent is the CRI cgroup_parent of a pod: a path for cgroupfs, a slice for systemd; "" without
// pod cgroups.
func (m *Manager) PodParent(pod *v1.Pod) string {
	if !m.opts.PerQOS {
		if r := m.root(); len(r) > 0 {
			return m.parent(r)
		}
		return ""
	}
	return m.parent(m.podPath(pod))
}

// RemovePod removes a pod's cgroup. What still runs in it belongs to a pod that has ended, and is killed.
func (m *Manager) RemovePod(uid types.UID) error {
	if !m.opts.PerQOS {
		return nil
	}
	if err := checkUID(uid); err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		p := m.podOf(class, uid)
		if m.removeEmpty(p) {
			continue
		}
		if err := m.remove(p); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", p.cgroupfs(), err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.updateClass()
}

// Pods returns the UIDs of the pods that have a cgroup below the root.
func (m *Manager) Pods() ([]types.UID, error) {
	if !m.opts.PerQOS {
		return nil, nil
	}
	seen := map[types.UID]bool{}
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		for _, dir := range m.dirs(m.classPath(class)) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				if errors.Is(err, os.ErrNotExist) {
					continue
				}
				return nil, fmt.Errorf("list pod cgroups: %w", err)
			}
			for _, e := range entries {
				if uid, ok := m.podUID(class, e.Name()); ok && e.IsDir() {
					seen[uid] = true
				}
			}
		}
	}
	uids := make([]types.UID, 0, len(seen))
	for uid := range seen {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids, nil
}

// RemoveAll removes the whole tree below the root, for a node that is taken down. Pods must have ended.
func (m *Manager) RemoveAll() error {
	uids, err := m.Pods()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if err := m.RemovePod(uid); err != nil {
			return err
		}
	}
	for _, class := range []v1.PodQOSClass{v1.PodQOSBurstable, v1.PodQOSBestEffort, v1.PodQOSGuaranteed} {
		if err := m.remove(m.classPath(class)); err != nil {
			return err
		}
	}
	if r := m.root(); len(r) > 0 {
		return m.remove(r)
	}
	return nil
}

// apply makes a cgroup and sets its values.
func (m *Manager) apply(p path, r Resources) error {
	lib, err := m.manager(p, r)
	if err != nil {
		return err
	}
	if err := lib.Apply(-1); err != nil {
		return err
	}
	return lib.Set(m.resources(r))
}

func (m *Manager) manager(p path, r Resources) (cgroups.Manager, error) {
	config := &cgroups.Cgroup{Resources: m.resources(r)}
	if m.opts.Driver == DriverSystemd {
		config.Systemd = true
		config.Parent, config.Name = p.parent().slice(), p.slice()
	} else {
		config.Path = p.cgroupfs()
	}
	return manager.New(config)
}

func (m *Manager) resources(r Resources) *cgroups.Resources {
	out := &cgroups.Resources{
		SkipDevices:     true,
		SkipFreezeOnSet: true,
		CpuShares:       r.CPUShares,
		CpuQuota:        r.CPUQuota,
		CpuPeriod:       r.CPUPeriod,
		Memory:          r.Memory,
	}
	out.HugetlbLimit = kernelHuge(r.Huge)
	if r.Pids != 0 {
		out.PidsLimit = &r.Pids
	}
	if cgroups.IsCgroup2UnifiedMode() {
		out.CpuWeight = weight(r.CPUShares)
	}
	return out
}

// removeEmpty removes the directories of a cgroup that are empty, and reports whether none is left: one call per
// hierarchy for a pod whose containers are gone. With the systemd driver it removes nothing, since systemd removes its
// slices.
func (m *Manager) removeEmpty(p path) (gone bool) {
	if m.opts.Driver == DriverSystemd {
		return !m.exists(p)
	}
	gone = true
	for _, dir := range m.dirs(p) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			gone = false
		}
	}
	return gone
}

// remove ends what runs in a cgroup and removes it.
func (m *Manager) remove(p path) error {
	if err := m.killProcesses(p); err != nil {
		return err
	}
	if m.opts.Driver == DriverSystemd {
		lib, err := m.manager(p, Resources{})
		if err != nil {
			return err
		}
		if err := lib.Destroy(); err != nil {
			return err
		}
	}
	for _, dir := range m.dirs(p) {
		if err := removeTree(dir); err != nil {
			return err
		}
	}
	return nil
}

// killProcesses kills what runs in a cgroup and waits until it is gone. It looks in every hierarchy: which of those of
// v1 a runtime has put a container into differs between machines.
func (m *Manager) killProcesses(p path) error {
	deadline := time.Now().Add(removeWait)
	for {
		left := 0
		for _, dir := range m.dirs(p) {
			pids, err := cgroups.GetAllPids(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
				return err
			}
			for _, pid := range pids {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("kill process %d: %w", pid, err)
				}
			}
			left = max(left, len(pids))
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes do not exit", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// removeTree removes a cgroup directory and those below it. The files in one are the kernel's.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// exists reports whether a cgroup is there, in any hierarchy.
func (m *Manager) exists(p path) bool {
	return slices.ContainsFunc(m.dirs(p), func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	})
}

// dirs returns the directories of a cgroup: one per hierarchy in v1, one in v2.
func (m *Manager) dirs(p path) []string {
	rel := p.cgroupfs()
	if m.opts.Driver == DriverSystemd {
		rel = p.systemdDir()
	}
	if cgroups.IsCgroup2UnifiedMode() {
		return []string{filepath.Join(mountpoint, rel)}
	}
	entries, err := os.ReadDir(mountpoint)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		// "cpu" may be a link to "cpu,cpuacct": the directory counts once.
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(mountpoint, e.Name(), rel))
		}
	}
	return dirs
}

// missingControllers returns those of cpu, memory and pids that the kernel does not offer.
func missingControllers(mount string) []string {
	var missing []string
	offered, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	for _, name := range []string{"cpu", "memory", "pids"} {
		if err == nil {
			if !slices.Contains(strings.Fields(string(offered)), name) {
				missing = append(missing, name)
			}
			continue
		}
		// The folder alone may be left of a mount that is not there.
		if _, err := os.Stat(filepath.Join(mount, name, "cgroup.procs")); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// offered leaves out what the kernel cannot limit: the library takes a value that it cannot set for an
// error, and the pod would not run at all.
func offered(r Resources, missing []string) Resources {
	if slices.Contains(missing, "cpu") {
		r.CPUShares, r.CPUQuota, r.CPUPeriod = 0, 0, 0
	}
	if slices.Contains(missing, "memory") {
		r.Memory = 0
	}
	if slices.Contains(missing, "pids") {
		r.Pids = 0
	}
	return r
}

func mapValues(pods map[types.UID]*v1.Pod) []*v1.Pod {
	list := make([]*v1.Pod, 0, len(pods))
	for _, p := range pods {
		list = append(list, p)
	}
	return list
}
