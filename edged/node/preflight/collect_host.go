package preflight

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// program is the agent's.
const program = "edgecore"

// lookAtPort checks whether a port is free, and else which process listens on it.
func lookAtPort(ctx context.Context, p *Port) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.Address)
	if err == nil {
		p.Err = l.Close()
		return
	}
	p.Err = err
	if !errors.Is(err, syscall.EADDRINUSE) {
		return
	}
	_, text, err := net.SplitHostPort(p.Address)
	if err != nil {
		return
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return
	}
	pid, name := holder(uint16(port))
	if pid == 0 {
		return
	}
	p.Holder, p.Own = fmt.Sprintf("%s (pid %d)", name, pid), name == program
}

// holder returns the process that listens on a port of this network; 0 where none is found.
func holder(port uint16) (pid int, name string) {
	sockets := map[string]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if inode, ok := listens(lines.Text(), port); ok {
				sockets["socket:["+inode+"]"] = true
			}
		}
		_ = f.Close() // it was only read
	}
	if len(sockets) == 0 {
		return 0, ""
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, ""
	}
	for _, fd := range files {
		if target, err := os.Readlink(fd); err != nil || !sockets[target] {
			continue
		}
		process := filepath.Dir(filepath.Dir(fd))
		comm, err := os.ReadFile(filepath.Join(process, "comm"))
		if n, errNumber := strconv.Atoi(filepath.Base(process)); err == nil && errNumber == nil {
			return n, strings.TrimSpace(string(comm))
		}
	}
	return 0, ""
}

// listens reads a line of /proc/net/tcp: the inode of a socket that listens on a port.
func listens(line string, port uint16) (inode string, ok bool) {
	const local, state, node, listening = 1, 3, 9, "0A"
	fields := strings.Fields(line)
	if len(fields) <= node || fields[state] != listening {
		return "", false
	}
	_, hex, ok := strings.Cut(fields[local], ":")
	n, err := strconv.ParseUint(hex, 16, 16)
	return fields[node], ok && err == nil && uint16(n) == port
}

// lookAtDisk looks at the file system of a folder, or of the nearest one above it that is there.
func lookAtDisk(d *Disk) {
	dir := d.Path
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			d.Size, d.Free = int64(st.Blocks)*int64(st.Bsize), int64(st.Bavail)*int64(st.Bsize)
			d.Inodes, d.FreeInodes = int64(st.Files), int64(st.Ffree)
			d.ReadOnly = st.Flags&unix.ST_RDONLY != 0
			break
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, unix.ENOENT) || parent == dir {
			d.Err = err
			return
		}
		dir = parent
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		d.Err = fmt.Errorf("%s is not a folder", dir)
	} else if err := unix.Access(dir, unix.W_OK); err != nil && !d.ReadOnly {
		d.Err = fmt.Errorf("write to %s: %w", dir, err)
	}
}
