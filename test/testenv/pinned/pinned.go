// Package pinned builds programs of others that the tests run, each pinned by a module of its own under test/, so that
// what they depend on stays out of edgecore's module. A build is made once and kept in the cache folder.
package pinned

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// Program is one of them.
type Program struct {
	// Name is what messages and the cache call it, Folder that of its module under test.
	Name, Folder string
	// Target is what is built there: a package, or "tool".
	Target string
	// Env names a variable of the environment with the path of one that was built before, for machines that have no Go.
	Env string
	// Cgo: it has parts in C.
	Cgo bool
	// Kubernetes is set for a program of Kubernetes, which reports the version of its module.
	Kubernetes bool
	// Takes is how long the build takes on 2 cores.
	Takes string
}

// Build returns the path of the program, which it builds once for each state of its module and version of Go.
func (p Program) Build(ctx context.Context, progress io.Writer) (string, error) {
	if built := os.Getenv(p.Env); built != "" {
		return built, nil
	}
	mod, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/edgecore-io/edgecore").
		Output()
	if err != nil {
		return "", fmt.Errorf("find the folder of the module edgecore: %w", err)
	}
	module := filepath.Join(strings.TrimSpace(string(mod)), "test", p.Folder)
	cache, err := images.CacheDir()
	if err != nil {
		return "", err
	}
	key, err := buildKey(module)
	if err != nil {
		return "", err
	}
	// Several test binaries may ask at once: one builds, the others wait for it.
	lock, err := os.OpenFile(filepath.Join(cache, p.Name+"-lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another build of %s: %w", p.Name, err)
	}
	binary := filepath.Join(cache, p.Name+"-"+key)
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	flags := "-s -w"
	if p.Kubernetes {
		if flags, err = KubernetesFlags(ctx, module); err != nil {
			return "", err
		}
	}
	_, _ = fmt.Fprintf(progress, "Building %s: %s on 2 cores; the next run finds it in %s\n", p.Name, p.Takes, binary)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags="+flags, "-o", binary+".building", p.Target)
	cmd.Dir = module
	cgo := "CGO_ENABLED=0"
	if p.Cgo {
		cgo = "CGO_ENABLED=1"
	}
	// What the caller's build is made with (-race, -tags, -mod) is nothing to this program.
	cmd.Env = append(os.Environ(), cgo, "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOOS=", "GOARCH=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s in %s: %w\n%s", p.Name, module, err, text)
	}
	return binary, os.Rename(binary+".building", binary)
}

// buildKey names what the program is made of.
func buildKey(module string) (string, error) {
	h := sha256.New()
	sources, err := filepath.Glob(filepath.Join(module, "*.go"))
	if err != nil {
		return "", err
	}
	for _, path := range append([]string{filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")},
		sources...) {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d:%s", len(data), data)
	}
	fmt.Fprint(h, runtime.Version(), runtime.GOARCH)
	return fmt.Sprintf("%x", h.Sum(nil))[:16], nil
}

// KubernetesFlags returns the linker's flags for programs of Kubernetes that are built in a module: they report the
// module's version instead of v0.0.0.
func KubernetesFlags(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOWORK=off")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the version of k8s.io/kubernetes in %s: %w: %s", module, err,
			strings.TrimSpace(errs.String()))
	}
	version := strings.TrimSpace(string(out))
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) != 3 {
		return "", fmt.Errorf("version of k8s.io/kubernetes in %s is %q, want vX.Y.Z", module, version)
	}
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X", pkg+".gitVersion="+version, "-X", pkg+".gitMajor="+parts[0], "-X",
			pkg+".gitMinor="+parts[1])
	}
	return strings.Join(flags, " "), nil
}
