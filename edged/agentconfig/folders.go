package agentconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// CheckFolders says which folders of a configuration can never be on this device: those of the store, of pods and of
// their logs. The agent does not start with them. A disk that is full or takes no writes is no reason: it may be better
// later. It changes nothing. The error is strict.Problems.
func CheckFolders(cfg *v1alpha2.EdgeCore) error {
	var problems strict.Problems
	check := func(path string, err error) {
		if err != nil {
			problems = append(problems, strict.Problem{Path: path, Text: err.Error()})
		}
	}
	store := cfg.Database.DataSource
	err := checkFolder(filepath.Dir(store))
	if info, statErr := os.Stat(store); err == nil && statErr == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", store)
	}
	check("database.dataSource", err)
	if own := &cfg.Modules.Edged; own.Enable {
		check("modules.edged.rootDirectory", checkFolder(own.RootDirectory))
		check("modules.edged.tailoredKubeletConfig.podLogsDir", checkFolder(own.TailoredKubeletConfig.PodLogsDir))
	}
	return problems.OrNil()
}

// checkFolder reports why a path is not a folder, and cannot be made one.
func checkFolder(path string) error {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			continue // or a link to a disk that is not there yet
		case errors.Is(err, unix.ENOTDIR):
			continue // one above it is a file
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
			return err
		case err != nil:
			return nil // the disk fails, perhaps
		case !info.IsDir():
			return fmt.Errorf("%s: %s is not a folder", path, at)
		case at != path && ofKernel(at):
			return fmt.Errorf("%s: no folder can be made in %s, which is the kernel's", path, at)
		}
		return nil
	}
}

// ofKernel reports whether a folder holds what the kernel shows of itself, and no files.
func ofKernel(folder string) bool {
	var st unix.Statfs_t
	if unix.Statfs(folder, &st) != nil {
		return false
	}
	switch uint32(st.Type) { //nolint:unconvert // its type differs between architectures
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC:
		return true
	}
	return false
}
