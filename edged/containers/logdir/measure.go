package logdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// Measure returns what a container's log folder takes of the disk. One that does not exist takes nothing, and neither
// does a link in its place or in that of the pod's folder.
func Measure(ctx context.Context, dir string) (volume.Size, error) {
	root, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrRefused) {
		return volume.Size{}, nil
	}
	if err != nil {
		return volume.Size{}, err
	}
	defer root.Close()
	f, err := root.Open(".")
	if err != nil {
		return volume.Size{}, err
	}
	defer f.Close()
	return volume.Measure(ctx, fmt.Sprintf("/proc/self/fd/%d/.", f.Fd())) // which is this folder wherever it is moved
}
