package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// board is what a machine of an architecture is made of. Software emulation everywhere: a /dev/kvm that is there may
// still not work.
type board struct {
	qemu    string
	machine []string
	console string
	// interpreter runs programs of the architecture here, and magic and mask are how the kernel knows them: ELF of that
	// machine.
	interpreter, magic, mask string
}

// AMD64 and ARM64 are the architectures, as Debian calls them.
const (
	AMD64 = "amd64"
	ARM64 = "arm64"
)

// elfMask leaves the kind of operating system open, and whether a program is position-independent.
const elfMask = `\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`

func boardOf(arch string) (board, error) {
	switch arch {
	case AMD64:
		return board{qemu: "qemu-system-x86_64", machine: []string{"-machine", "q35,accel=tcg", "-cpu", "max"},
			console: "ttyS0"}, nil
	case ARM64:
		return board{
			// The signing of pointers costs an emulated processor most of its time.
			qemu:        "qemu-system-aarch64",
			machine:     []string{"-machine", "virt,accel=tcg", "-cpu", "cortex-a72"},
			console:     "ttyAMA0",
			interpreter: "/usr/bin/qemu-aarch64-static",
			mask:        elfMask,
			magic:       `\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`,
		}, nil
	}
	return board{}, fmt.Errorf("no machines of the architecture %q: there are %s and %s", arch, AMD64, ARM64)
}

const binfmt = "/proc/sys/fs/binfmt_misc"

// emulate lets this system run the programs of another architecture, as building an image of it needs. It lasts until
// the system is switched off, and changes nothing for programs of its own.
func emulate(ctx context.Context, arch string) error {
	b, err := boardOf(arch)
	if err != nil || arch == runtime.GOARCH {
		return err
	}
	if _, err := os.Stat(b.interpreter); err != nil {
		return fmt.Errorf("programs of %s cannot be run here: %w; `hack/setup vm-arm64` installs it", arch, err)
	}
	if _, err := os.Stat(binfmt + "/register"); errors.Is(err, os.ErrNotExist) {
		if err := command(ctx, "mount", "-t", "binfmt_misc", "binfmt_misc", binfmt); err != nil {
			return err
		}
	}
	// Debian's own registration, where there is one, has this name, too.
	name := strings.TrimSuffix(filepath.Base(b.interpreter), "-static")
	if _, err := os.Stat(filepath.Join(binfmt, name)); err == nil {
		return nil
	}
	return os.WriteFile(binfmt+"/register", []byte(b.registration(name)), 0o200)
}

// registration is what the kernel is told. F: the interpreter is opened now, so that it is there inside the image, too.
func (b board) registration(name string) string {
	return ":" + name + ":M::" + b.magic + ":" + b.mask + ":" + b.interpreter + ":F"
}
