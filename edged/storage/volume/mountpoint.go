package volume

// IsMountpoint reports whether something is mounted on a path, be it of the same file system.
func IsMountpoint(path string) (bool, error) { return isMountpoint(path) }

// UnmountAll unmounts a path and all that is mounted below it; it is not an error if the path does not exist.
func UnmountAll(path string) error { return unmountAll(path) }
