package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func command(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// device returns the loop device of a volume, "" when it has none.
func (d *driver) device(id string) (string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(data)) == d.at(id, "image") {
			return "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file))), nil
		}
	}
	return "", nil
}

// attach gives a volume a loop device, unless it has one.
func (d *driver) attach(ctx context.Context, id string) (string, error) {
	if device, err := d.device(id); err != nil || device != "" {
		return device, err
	}
	return command(ctx, "losetup", "--find", "--show", d.at(id, "image"))
}

// detach takes the loop device of a volume away.
func (d *driver) detach(ctx context.Context, id string) error {
	device, err := d.device(id)
	if err != nil || device == "" {
		return err
	}
	_, err = command(ctx, "losetup", "--detach", device)
	return err
}

// format makes a file system on a device that has none.
func format(ctx context.Context, device string) error {
	if _, err := command(ctx, "blkid", "-p", device); err == nil {
		return nil
	}
	_, err := command(ctx, "mkfs.ext4", "-q", "-E", "nodiscard", device)
	return err
}

func mountExt4(ctx context.Context, device, path string, flags []string) error {
	args := []string{"-t", "ext4"}
	if len(flags) > 0 {
		args = append(args, "-o", strings.Join(flags, ","))
	}
	_, err := command(ctx, "mount", append(args, device, path)...)
	return err
}

// expand grows a device, and the file system on it, to the size of the file behind it.
func expand(ctx context.Context, device string, fs bool) error {
	if _, err := command(ctx, "losetup", "--set-capacity", device); err != nil || !fs {
		return err
	}
	_, err := command(ctx, "resize2fs", device)
	return err
}

func mounted(path string) bool {
	yes, err := mountinfo.Mounted(path)
	return err == nil && yes
}

func unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
