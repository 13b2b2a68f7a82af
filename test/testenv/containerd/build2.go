package containerd

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// Build2 returns the path of a containerd 2.x with its shim and ctr beside it. The version is that
// of the module test/containerd2; it is built once for each version and machine, which takes
// minutes, and kept in the cache folder.
func Build2(ctx context.Context) (string, error) {
	module, err := module2()
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", err
	}
	cache, err := images.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("containerd2-%x", sha256.Sum256(append(sum, runtime.Version()...)))[:len("containerd2-")+16])
	binary := filepath.Join(dir, "containerd")
	// Several test binaries may ask at once: one builds, the others wait for it.
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	return binary, build2(ctx, module, dir)
}

// build2 builds into a folder beside dir, which appears when it is complete.
func build2(ctx context.Context, module, dir string) error {
	tmp := dir + ".building"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	// Snapshotters that nobody uses here would double the time.
	args := []string{"build", "-C", module, "-trimpath", "-ldflags=-s -w", "-tags=no_btrfs,no_devmapper,no_zfs,no_aufs,no_tracing,osusergo,netgo", "-o", tmp + "/"}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		args = append(args, "github.com/containerd/containerd/v2/cmd/"+program)
	}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build containerd 2 in %s: %w\n%s", module, err, out)
	}
	return os.Rename(tmp, dir)
}

// module2 finds the folder test/containerd2 of this checkout.
func module2() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/edgecore-io/edgecore").Output()
	if err != nil {
		return "", fmt.Errorf("find the folder of the module edgecore: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "test", "containerd2"), nil
}
