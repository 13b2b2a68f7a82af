package volume

// IsMountpoint reports whether something is mounted on a path, be it of the same file system.
func IsMountpoint(path string) (bool, error) { return isMountpoint(path) }

// UnmountAll unmounts a path and all that is mounted below it; a path that is not there is no error.
func UnmountAll(path string) error { return unmountAll(path) }
