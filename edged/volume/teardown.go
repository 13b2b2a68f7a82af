package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Teardown takes a pod's volumes away: it unmounts what is mounted below the pod's folder and removes
// the folders of its volumes. It knows a pod by its UID only, and may be called again. No container of the
// pod may run any more.
func (m *Manager) Teardown(ctx context.Context, uid types.UID) error {
	dir, err := m.unmounted(uid)
	if err != nil || dir == "" {
		return err
	}
	for _, sub := range []string{"volumes", subPathDirs} {
		if err := m.remove(ctx, filepath.Join(dir, sub)); err != nil {
			return err
		}
	}
	return nil
}

// RemovePodDir removes the whole folder of a pod, after Teardown.
func (m *Manager) RemovePodDir(uid types.UID) error {
	dir, err := m.unmounted(uid)
	if err != nil || dir == "" {
		return err
	}
	return m.remove(context.Background(), dir)
}

// unmounted returns the folder of a pod with nothing mounted in it, "" when there is none.
func (m *Manager) unmounted(uid types.UID) (string, error) {
	dir, err := m.podDir(uid)
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is no folder; it is left alone, remove it by hand", dir)
	}
	return dir, unmountAll(dir)
}

// remove removes a folder in which nothing is mounted.
func (m *Manager) remove(ctx context.Context, dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is not removed: still mounted are %s; unmount them", dir, strings.Join(mounts, ", "))
	}
	return removeTree(ctx, dir)
}
