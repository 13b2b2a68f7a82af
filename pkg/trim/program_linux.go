package trim

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unmapProgram unmaps the pages of the program's own file, such as code that only its start needed. They stay in the
// page cache, from where those that are used are mapped again, without reading the file. The others are the first that
// the kernel uses for something else, and no longer count as the program's memory.
func unmapProgram() error {
	name, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/smaps")
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without CONFIG_PROC_PAGE_MONITOR
	}
	if err != nil {
		return err
	}
	defer f.Close()
	found, err := unmappable(bufio.NewScanner(f), name)
	if err != nil {
		return fmt.Errorf("read %s: %w", f.Name(), err)
	}
	for _, m := range found {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
		if errno != 0 {
			return fmt.Errorf("unmap pages of %s: %w", name, errno)
		}
	}
	return nil
}

// mapping is a part of the address space.
type mapping struct{ start, end uintptr }

// mappedFiles returns how many bytes of files, and of memory shared with others, are mapped and in memory.
func mappedFiles() (uint64, error) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident, shared uint64 // in pages
	if _, err := fmt.Sscan(string(data), &size, &resident, &shared); err != nil {
		return 0, fmt.Errorf("read /proc/self/statm: %w", err)
	}
	return shared * uint64(os.Getpagesize()), nil
}

// unmappable returns the mappings of a file, from lines of /proc/PID/smaps, that the kernel can restore from the file:
// they cannot be written to, and were not written to before, as is the table of addresses that the loader fills in.
func unmappable(lines *bufio.Scanner, file string) (found []mapping, err error) {
	const none = "0 kB"
	var m mapping
	var ofFile, same, whole bool // whole: none of it is swapped
	for lines.Scan() {
		line := lines.Text()
		key, value, isField := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case isField && key == "Anonymous":
			same = value == none
		case isField && key == "Swap":
			whole = value == none
		case isField && key == "VmFlags": // the last field
			if ofFile && same && whole {
				found = append(found, m)
			}
		case !isField || strings.Contains(key, "-"):
			// start-end permissions offset device inode path
			fields := strings.SplitN(line, " ", 6)
			if len(fields) < 6 {
				return nil, fmt.Errorf("unknown line %q", line)
			}
			if m, err = parseMapping(fields[0]); err != nil {
				return nil, err
			}
			ofFile = strings.TrimLeft(fields[5], " ") == file && (fields[1] == "r--p" || fields[1] == "r-xp")
			same, whole = false, false
		}
	}
	return found, lines.Err()
}

// parseMapping parses start-end, both hexadecimal.
func parseMapping(s string) (mapping, error) {
	from, to, _ := strings.Cut(s, "-")
	start, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return mapping{}, fmt.Errorf("unknown range %q: %w", s, err)
	}
	end, err := strconv.ParseUint(to, 16, 64)
	if err != nil {
		return mapping{}, fmt.Errorf("unknown range %q: %w", s, err)
	}
	return mapping{uintptr(start), uintptr(end)}, nil
}
