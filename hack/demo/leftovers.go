package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/nat"
)

// record is what another process needs to stop a demo; it is in the demo's folder.
type record struct {
	// Owner is the process that runs the demo, and removes everything when asked to stop.
	Owner daemon.Identity `json:"owner"`
}

func recordFile(dir string) string { return filepath.Join(dir, "demo.json") }

func (r *record) save(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(recordFile(dir), data, 0o600)
}

// load returns an empty record if there is none.
func load(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(recordFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w; end the processes of the demo yourself and remove %s", recordFile(dir), err, dir)
	}
	return r, nil
}

// halt is `demo stop`: it stops a running demo, and removes what a killed one left.
func halt(ctx context.Context, dir string) error {
	r, err := load(dir)
	if err != nil {
		return err
	}
	if owner := daemon.Known(r.Owner); owner != nil {
		fmt.Printf("Ending the demo (process %d); it removes what it made.\n", owner.PID)
		if err := owner.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, daemon.Scaled(removeTimeout+time.Minute))
		defer cancel()
		if err := daemon.Poll(ctx, func() error {
			if owner.Running() {
				return fmt.Errorf("the demo (process %d) has not ended; its log says why", owner.PID)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := clear(ctx, dir); err != nil {
		return err
	}
	fmt.Println("Nothing of the demo is left.")
	return nil
}

// clear removes what is left in a folder of a demo whose process was killed, and the folder. A demo that runs is an
// error.
func clear(ctx context.Context, dir string) error {
	r, err := load(dir)
	if err != nil {
		return err
	}
	if r.Owner.Alive() {
		return fmt.Errorf("a demo runs already in %s (process %d): end it with Ctrl-C there, or with `make demo-stop`",
			dir, r.Owner.PID)
	}
	agents, err := agentsOf(dir)
	if err != nil {
		return err
	}
	for _, id := range agents {
		if err := daemon.Known(id).End(ctx, syscall.SIGKILL); err != nil {
			return err
		}
	}
	// The cluster, the containerd and the network know their owner themselves.
	if err := errors.Join(containerd.Sweep(ctx), kube.Sweep(), nat.Sweep(ctx)); err != nil {
		return err
	}
	return removeFolder(dir)
}

// removeFolder removes a demo's folder, but nothing mounted below it, and no folder of another owner.
func removeFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(recordFile(dir)); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is there and is not a demo's: name another folder with --dir", dir)
	}
	if err := agent.Unmount(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// agentsOf finds the cloudcore, the edgecore and the mapper whose configurations and sockets lie below a folder.
func agentsOf(dir string) ([]daemon.Identity, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []daemon.Identity
	for _, f := range files {
		line, err := os.ReadFile(f)
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 3 || args[1] != "--config" && args[1] != "--agent" ||
			!strings.HasPrefix(args[2], dir+string(filepath.Separator)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			return nil, err
		}
		if id, err := daemon.Identify(pid); err == nil { // else it has ended
			found = append(found, id)
		}
	}
	return found, nil
}
