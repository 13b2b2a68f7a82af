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

// program is what is built from a module of its own in test/.
type program struct {
	// module is the module's folder in test/, packages are built from it.
	module   string
	packages []string
	tags     string
}

// build returns the folder of the programs. They are built once for each version and machine, which may take minutes,
// and kept in the cache folder.
func (p program) build(ctx context.Context) (string, error) {
	module, err := moduleDir(p.module)
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
	key := fmt.Sprintf("%x", sha256.Sum256(append(sum, runtime.Version()...)))
	dir := filepath.Join(cache, p.module+"-"+key[:16])
	// Several test binaries may ask at once: one builds, the others wait for it.
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Beside the folder, which appears when it is complete.
	tmp := dir + ".building"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	args := append([]string{"build", "-C", module, "-trimpath", "-ldflags=-s -w", "-tags=" + p.tags, "-o", tmp + "/"},
		p.packages...)
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s in %s: %w\n%s", p.module, module, err, out)
	}
	return dir, os.Rename(tmp, dir)
}

// moduleDir finds the folder of a module in test/ of this checkout.
func moduleDir(name string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/edgecore-io/edgecore").Output()
	if err != nil {
		return "", fmt.Errorf("find the folder of the module edgecore: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "test", name), nil
}
