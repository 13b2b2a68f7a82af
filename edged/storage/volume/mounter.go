package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Mounter mounts what takes more than a system call: file systems whose mount(8) has a program of its own. Its calls
// end with their context, whatever the other side does.
type Mounter interface {
	// Mount mounts a source on a folder; no fsType is for options that name none, such as bind.
	Mount(ctx context.Context, source, target, fsType string, options []string) error
	// Unmount takes the mount on a folder away; force gives up what has not reached the server.
	Unmount(ctx context.Context, target string, force bool) error
	// Format makes a file system on a block device that holds nothing, and reports whether it did. One that holds
	// anything is left as it is.
	Format(ctx context.Context, device, fsType string) (bool, error)
	// Usage returns how full the file system is that is mounted on a folder.
	Usage(ctx context.Context, target string) (FileSystem, error)
}

// mountCommand is mount(8) and umount(8). They are processes of their own, so that one that waits for a server can be
// ended.
type mountCommand struct{}

// Mount implements Mounter.
func (mountCommand) Mount(ctx context.Context, source, target, fsType string, options []string) error {
	var args []string
	if fsType != "" {
		args = []string{"-t", fsType}
	}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	err := run(ctx, "mount", append(args, "--", source, target)...)
	if err != nil && strings.Contains(err.Error(), "need a /sbin/mount") {
		return fmt.Errorf("%w; install the program (Debian: nfs-common) on the node", err)
	}
	return err
}

// Unmount implements Mounter.
func (mountCommand) Unmount(ctx context.Context, target string, force bool) error {
	args := []string{"--no-canonicalize", "--", target}
	if force {
		args = append([]string{"-f", "-l"}, args...)
	}
	return run(ctx, "umount", args...)
}

// nothingFound is how blkid(8) exits when a device holds nothing that it knows.
const nothingFound = 2

// Format implements Mounter.
func (mountCommand) Format(ctx context.Context, device, fsType string) (bool, error) {
	for _, r := range fsType {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false, fmt.Errorf("%q is not a file system type", fsType)
		}
	}
	err := run(ctx, "blkid", "-p", "-u", "noraid", device) // a look at the disk itself, not into blkid's memory of it
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != nothingFound {
		return false, nil
	}
	// blkid says the same of a disk that cannot be read as of one that it does not know: nothing but zeros counts.
	if blank, err := isBlank(device); err != nil || !blank {
		return false, err
	}
	args := []string{device}
	if fsType == "ext3" || fsType == "ext4" {
		// it asks for confirmation otherwise; only pods write here, so no blocks are reserved for root
		args = []string{"-F", "-m0", device}
	}
	if err := run(ctx, "mkfs."+fsType, args...); err != nil {
		return false, fmt.Errorf("format %s: %w", device, err)
	}
	return true, nil
}

// Usage implements Mounter.
func (mountCommand) Usage(ctx context.Context, target string) (FileSystem, error) {
	text, err := output(ctx, "stat", "-f", "-c", "%s %b %f %a %c %d", "--", target)
	if err != nil {
		return FileSystem{}, err
	}
	var size, blocks, free, available, files, filesFree int64
	if _, err := fmt.Sscan(text, &size, &blocks, &free, &available, &files, &filesFree); err != nil {
		return FileSystem{}, fmt.Errorf("stat -f %s printed %q, which is not six numbers: %w", target, text, err)
	}
	return fileSystem(size, blocks, free, available, files, filesFree), nil
}

// isBlank reports whether the beginning of a device, where every file system and partition table has its mark, is all
// zeros.
func isBlank(device string) (bool, error) {
	f, err := os.Open(device)
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, 1<<20)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, fmt.Errorf("read %s: %w", device, err)
	}
	return n > 0 && !slices.ContainsFunc(head[:n], func(b byte) bool { return b != 0 }), nil
}

// run runs a command to its end, or to that of ctx, when it and what it started are killed.
func run(ctx context.Context, name string, args ...string) error {
	text, err := output(ctx, name, args...)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("%s %s: ended after waiting too long %s", name, strings.Join(args, " "), text),
			ctx.Err())
	}
	return fmt.Errorf("mount failed: %w\nMounting command: %s\nMounting arguments: %s\nOutput: %s", err, name,
		strings.Join(args, " "), text)
}

// output is run that returns what the command printed, also with an error.
func output(ctx context.Context, name string, args ...string) (string, error) {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	return strings.TrimSpace(output.String()), err
}
