package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// processes lists what runs in this instance: whatever is in its cgroup, its daemon and shims by
// their command line, and the processes of containers by the root they run on, wherever a pod's
// cgroup may be.
func (i *Instance) processes() ([]daemon.Identity, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []daemon.Identity
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || !i.owns(filepath.Join("/proc", e.Name())) {
			continue
		}
		if id, err := daemon.Identify(pid); err == nil && id.Alive() {
			found = append(found, id)
		}
	}
	return found, nil
}

// PIDs lists the processes of this instance, those of containers included.
func (i *Instance) PIDs() ([]int, error) {
	list, err := i.processes()
	pids := make([]int, len(list))
	for n, p := range list {
		pids[n] = p.PID
	}
	return pids, err
}

func (i *Instance) owns(proc string) bool {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(proc, name))
		if err != nil {
			return "" // it has ended
		}
		return string(data)
	}
	for line := range strings.Lines(read("cgroup")) {
		if slices.ContainsFunc(i.cgroupTrees(), func(tree string) bool {
			return inCgroup(strings.TrimSpace(line), tree)
		}) {
			return true
		}
	}
	if runtimeCommand(strings.Split(read("cmdline"), "\x00"), i.dir()+"/") {
		return true
	}
	for line := range strings.Lines(read("mountinfo")) {
		if rootMountIn(line, i.rootDir()+"/") {
			return true
		}
	}
	return false
}

// runtimeCommand reports whether args are those of a containerd, shim or runc that works in dir.
func runtimeCommand(args []string, dir string) bool {
	base := filepath.Base(args[0])
	return (strings.HasPrefix(base, "containerd") || base == "runc") &&
		slices.ContainsFunc(args[1:], func(a string) bool { return strings.HasPrefix(a, dir) })
}

// rootMountIn reports whether a line of mountinfo is the root of a container whose layers are in dir.
func rootMountIn(line, dir string) bool {
	fields := strings.Fields(line)
	return len(fields) > 5 && fields[4] == "/" && strings.Contains(line, "upperdir="+dir)
}

// killProcesses kills all of them. Shims end first or last: nobody is left to start anything.
func (i *Instance) killProcesses(ctx context.Context) error {
	return daemon.Poll(ctx, func() error {
		found, err := i.processes()
		if err != nil {
			return daemon.Fatal(err)
		}
		var errs []error
		for _, id := range found {
			errs = append(errs, id.Signal(syscall.SIGKILL), fmt.Errorf("process %d (%s) still runs", id.PID,
				id.Command()))
		}
		return errors.Join(errs...)
	})
}
