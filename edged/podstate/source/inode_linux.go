package source

import (
	"io/fs"
	"syscall"
)

// inode returns the inode number of a file, or 0 where the file system has none.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
