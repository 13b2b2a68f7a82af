// Package readdir reads folders without writing to the disk: normally, reading a folder updates its access time, the
// first time after each change. Checking thirty log folders each minute must not wear out flash.
package readdir

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Quiet is os.ReadDir without changing the folder's access time. For a folder of another owner only root can do that;
// other users get os.ReadDir.
func Quiet(name string) ([]os.DirEntry, error) {
	dir, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOATIME, 0)
	if errors.Is(err, os.ErrPermission) {
		return os.ReadDir(name)
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	smallsort.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}
