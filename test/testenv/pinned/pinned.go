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
	// Tags are those of the build, with commas.
	Tags string
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
	module, err := Module(ctx, p.Folder)
	if err != nil {
		return "", err
	}
	cache, err := images.CacheDir()
	if err != nil {
		return "", err
	}
	key, err := buildKey(module, p.Tags)
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
	if err := p.build(ctx, module, binary+".building", progress); err != nil {
		return "", fmt.Errorf("build %s in %s: %w", p.Name, module, err)
	}
	return binary, os.Rename(binary+".building", binary)
}

// build builds the program and reports on progress how far it is.
func (p Program) build(ctx context.Context, module, binary string, progress io.Writer) error {
	flags := "-s -w"
	if p.Kubernetes {
		var err error
		if flags, err = KubernetesFlags(ctx, module); err != nil {
			return err
		}
	}
	total, err := PackagesToBuild(ctx, module, p.Cgo, p.Tags, p.Target)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(progress, "Building %s: %d packages, %s for all on 2 cores; the next run finds it in %s\n",
		p.Name, total, p.Takes, strings.TrimSuffix(binary, ".building"))
	cmd := Go(ctx, module, p.Cgo, "build", "-v", "-trimpath", "-ldflags="+flags, "-tags="+p.Tags, "-o",
		binary, p.Target)
	out := NewProgress(progress, total)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, out.Errors())
	}
	_, _ = fmt.Fprintf(progress, "Built %s in %v\n", p.Name, out.Took())
	return nil
}

// Module returns the folder of a module under test.
func Module(ctx context.Context, folder string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/edgecore-io/edgecore").
		Output()
	if err != nil {
		return "", fmt.Errorf("find the folder of the module edgecore: %w", explain(err))
	}
	return filepath.Join(strings.TrimSpace(string(out)), "test", folder), nil
}

// buildKey names what the program is made of.
func buildKey(module, tags string) (string, error) {
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
	fmt.Fprint(h, tags, runtime.Version(), runtime.GOARCH)
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
