package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Sweep removes the clusters whose owner has ended without stopping them.
func Sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), namePrefix+"????????"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if err := sweep(dir); err != nil {
			errs = append(errs, fmt.Errorf("remove the cluster in %s that nobody owns: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

func sweep(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil // being made, or being removed by someone else
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil || r.Owner.Alive() {
		return nil // unreadable: being written
	}
	ctx, cancel := daemon.Within(context.Background())
	defer cancel()
	for _, g := range r.Guests {
		if err := g.remove(ctx); err != nil {
			return err
		}
	}
	for _, id := range r.Processes {
		if err := kill(ctx, id); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// kill kills a process and returns when it has ended.
func kill(ctx context.Context, id daemon.Identity) error {
	if err := id.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return daemon.Poll(ctx, func() error {
		if id.Alive() {
			return fmt.Errorf("process %d (%s) has not ended", id.PID, id.Command())
		}
		return nil
	})
}
