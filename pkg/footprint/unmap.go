package footprint

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// area is a mapped part of the address space, from the first address to the one after the last.
type area struct{ from, to uintptr }

// unmapFile takes the pages of the program's own file out of its resident memory: most were needed only while it
// started, or for work that is rare. They stay in the kernel's page cache, as pages that it can use for something else.
// Those that are needed again come back 16 at a time, without being read from the disk unless the kernel has used them.
func unmapFile() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer f.Close()
	areas, err := unchanged(f, program)
	if err != nil {
		return err
	}
	for _, a := range areas {
		if _, _, e := unix.Syscall(unix.SYS_MADVISE, a.from, a.to-a.from, unix.MADV_DONTNEED); e != 0 {
			return fmt.Errorf("unmap %x-%x: %w", a.from, a.to, e)
		}
	}
	return nil
}

// unchanged returns the areas of a text like /proc/PID/smaps that map the file read-only and are as the file has them:
// no page was changed, by a debugger or for relocation.
func unchanged(smaps io.Reader, file string) (list []area, err error) {
	var now *area
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0:
		case !strings.HasSuffix(fields[0], ":"): // FROM-TO PERMISSIONS OFFSET DEVICE INODE [FILE]
			now = nil
			if len(fields) < 6 || strings.Contains(fields[1], "w") || strings.Join(fields[5:], " ") != file {
				continue
			}
			now = &area{}
			if _, err := fmt.Sscanf(fields[0], "%x-%x", &now.from, &now.to); err != nil {
				return nil, fmt.Errorf("address %q: %w", fields[0], err)
			}
		case fields[0] == "Anonymous:" && now != nil:
			if len(fields) > 1 && fields[1] == "0" {
				list = append(list, *now)
			}
			now = nil
		}
	}
	return list, lines.Err()
}
