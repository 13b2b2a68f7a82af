package containerd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

// mounts lists the mount points under dirs, the latest first.
func mounts(dirs ...string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	found := mountPoints(string(data), dirs)
	slices.Reverse(found)
	return found, nil
}

// mountPoints picks the mount points under dirs from the text of a mountinfo file.
func mountPoints(mountinfo string, dirs []string) []string {
	var found []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		// The kernel writes blanks and backslashes of a path as octal numbers.
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		if slices.ContainsFunc(dirs, func(d string) bool { return point == d || strings.HasPrefix(point, d+"/") }) {
			found = append(found, point)
		}
	}
	return found
}

func unmountUnder(dirs ...string) error {
	points, err := mounts(dirs...)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range points {
		// Detached: gone from the tree at once, freed when its last user ends.
		if err := syscall.Unmount(p, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) &&
			!errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}
