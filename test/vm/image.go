package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// Image is a Debian that virtual machines boot. It is never written to: each machine has an overlay.
type Image struct {
	Disk, Kernel, Initrd string
	// Busybox is a static program of the image's architecture, for container images.
	Busybox string
}

const (
	// recipeVersion is raised whenever the same recipe would make another image.
	recipeVersion = "2"
	suite         = "bookworm"
	diskSize      = "4G"
	defaultMirror = "http://deb.debian.org/debian"
)

// packages are what a device of our users has, besides its kernel: Debian with systemd and its own containerd.
var packages = []string{
	"systemd", "systemd-sysv", "dbus", "udev", "kmod", "containerd", "runc", "containernetworking-plugins",
	"iptables", "iproute2", "busybox-static", "ca-certificates", "procps", "sqlite3", "libseccomp2",
}

// The initial RAM disk has what finds the root disk, and nothing else: under emulation each megabyte of it
// is seconds of booting.
var initramfs = map[string]string{
	"etc/initramfs-tools/conf.d/vm":          "MODULES=list\nCOMPRESS=gzip\n",
	"usr/share/initramfs-tools/modules.d/vm": "virtio_pci\nvirtio_blk\next4\n",
	"etc/kernel-img.conf":                    "do_symlinks = yes\n",
	"etc/dpkg/dpkg.cfg.d/no-documentation": "path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\n" +
		"path-exclude=/usr/share/locale/*\n",
	"etc/apt/apt.conf.d/99no-recommends-no-trans": "APT::Install-Recommends \"false\";\nAcquire::Languages \"none\";\n",
}

// files are written into the finished system; a value that begins with "-> " is a link.
var files = map[string]string{
	"etc/hostname":   "edge\n",
	"etc/hosts":      "127.0.0.1 localhost edge\n",
	"etc/machine-id": "0123456789abcdef0123456789abcdef\n",
	"etc/fstab":      "/dev/vda / ext4 defaults 0 1\n",
	// What qemu's user-mode network has, where a machine has a network.
	"etc/resolv.conf":                     "nameserver 10.0.2.3\n",
	"etc/systemd/network/10-eth0.network": "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\n",
	"etc/modules-load.d/containers.conf":  "overlay\nbr_netfilter\nveth\n",
	"etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=persistent\nSystemMaxUse=64M\n",
	// emulation is slow
	"etc/systemd/system.conf.d/vm.conf": "[Manager]\nDefaultTimeoutStartSec=300s\n",
	"etc/systemd/system/payload.mount": "[Unit]\nConditionPathExists=/dev/vdb\n" +
		"[Mount]\nWhat=/dev/vdb\nWhere=/payload\nType=ext4\nOptions=ro\n",
	"etc/systemd/system/edgecore-vm.service":                         guestUnit,
	"etc/systemd/system/multi-user.target.wants/edgecore-vm.service": "-> ../edgecore-vm.service",
	"etc/systemd/system/multi-user.target.wants/systemd-networkd.service": "-> /lib/systemd/system/" +
		"systemd-networkd.service",
	// A test that wants the machine's own containerd starts it.
	"etc/systemd/system/multi-user.target.wants/containerd.service":   "",
	"etc/systemd/system/multi-user.target.wants/e2scrub_reap.service": "",
	"etc/systemd/system/getty.target.wants/getty@tty1.service":        "",
	"etc/systemd/system/serial-getty@ttyS0.service":                   "-> /dev/null",
	"etc/systemd/system/apt-daily.timer":                              "-> /dev/null",
	"etc/systemd/system/apt-daily-upgrade.timer":                      "-> /dev/null",
	"etc/systemd/system/dpkg-db-backup.timer":                         "-> /dev/null",
	"etc/systemd/system/e2scrub_all.timer":                            "-> /dev/null",
	"etc/systemd/system/fstrim.timer":                                 "-> /dev/null",
}

// guestUnit starts the guest program, which every machine gets on its payload disk.
const guestUnit = `[Unit]
Description=Does in this machine what a test asks for
Requires=payload.mount
After=payload.mount
[Service]
ExecStart=/payload/guest
Restart=always
RestartSec=1
LimitNOFILE=1048576
TasksMax=infinity
Delegate=yes
[Install]
WantedBy=multi-user.target
`

func mirror() string {
	if m := os.Getenv("EDGECORE_TEST_MIRROR"); m != "" {
		return m
	}
	return defaultMirror
}

// recipe names the content of an architecture's image.
func recipe(arch string, more ...string) string {
	h := sha256.New()
	add := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(h, "%d:%s", len(p), p)
		}
	}
	add(recipeVersion, arch, suite, diskSize, strings.Join(slices.Concat(packages, more), " "))
	for _, m := range []map[string]string{initramfs, files} {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			add(name, m[name])
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:16]
}

// BuildImage returns the image of the current recipe for an architecture in Debian's words (amd64, arm64), building it
// when the cache has none: that needs root and a Debian mirror, and takes minutes. It has more packages than all images
// where they are named. Several processes may ask at once.
func BuildImage(ctx context.Context, arch string, more ...string) (Image, error) {
	if _, err := boardOf(arch); err != nil {
		return Image{}, err
	}
	cache, err := images.CacheDir()
	if err != nil {
		return Image{}, err
	}
	dir := filepath.Join(cache, "vm-"+recipe(arch, more...))
	img := Image{
		Disk:    filepath.Join(dir, "disk.raw"),
		Kernel:  filepath.Join(dir, "vmlinuz"),
		Initrd:  filepath.Join(dir, "initrd"),
		Busybox: filepath.Join(dir, "busybox"),
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return Image{}, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Image{}, err
	}
	if _, err := os.Stat(dir); err == nil {
		return img, nil
	}
	tmp := dir + ".building"
	if err := discard(tmp); err != nil {
		return Image{}, err
	}
	if err := buildImage(ctx, arch, tmp, more); err != nil {
		return Image{}, fmt.Errorf("build the machine's image: %w", errors.Join(err, discard(tmp)))
	}
	return img, os.Rename(tmp, dir)
}

// discard removes an unfinished image. A mmdebstrap that was killed leaves /proc and more mounted in it.
func discard(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := agent.Unmount(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func buildImage(ctx context.Context, arch, dir string, more []string) error {
	root, before := filepath.Join(dir, "root"), filepath.Join(dir, "before")
	if err := errors.Join(emulate(ctx, arch), writeTree(before, initramfs)); err != nil {
		return err
	}
	if err := command(ctx, "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--architectures="+arch,
		"--include=linux-image-cloud-"+arch+","+strings.Join(slices.Concat(packages, more), ","),
		"--setup-hook=cp -r "+before+"/. \"$1\"/", suite, root, mirror()); err != nil {
		return err
	}
	if err := writeTree(root, files); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "payload"), 0o755); err != nil {
		return err
	}
	for target, pattern := range map[string]string{"vmlinuz": "boot/vmlinuz-*", "initrd": "boot/initrd.img-*",
		"busybox": "bin/busybox"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%s: found %v, want one file", pattern, found)
		}
		if err := command(ctx, "cp", found[0], filepath.Join(dir, target)); err != nil {
			return err
		}
	}
	if err := makeDisk(ctx, filepath.Join(dir, "disk.raw"), root, diskSize); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(root), os.RemoveAll(before))
}

// makeDisk makes an ext4 file system that holds a folder.
func makeDisk(ctx context.Context, disk, folder, size string) error {
	return command(ctx, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", folder, disk,
		size)
}

func writeTree(root string, tree map[string]string) error {
	for name, content := range tree {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		var err error
		if target, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(target, path)
		} else if content != "" {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w; `hack/setup vm` installs it", err)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
