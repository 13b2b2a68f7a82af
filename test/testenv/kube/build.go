package kube

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

// tools are the programs of the module test/kube, by the names that go build gives them; etcd's
// main package ends in a version, so its program is called after the folder above.
var tools = map[string]string{
	"etcd":                    "server",
	"kube-apiserver":          "kube-apiserver",
	"kube-controller-manager": "kube-controller-manager",
	"kube-scheduler":          "kube-scheduler",
	"kubectl":                 "kubectl",
}

const (
	binariesPrefix   = "kube-"
	progressInterval = 15 * time.Second
	keepBinaries     = 14 * 24 * time.Hour
)

// BinariesEnv names a folder with programs that were built before, for machines that have no Go.
const BinariesEnv = "EDGECORE_TEST_KUBE"

// Build returns the folder that holds etcd, kube-apiserver, kube-controller-manager, kube-scheduler
// and kubectl, in the versions of the module test/kube. They are built once for each state of that
// module and Go version, which takes about 10 minutes on 2 cores, and kept in the cache folder. A
// build tells on progress how far it is; an interrupted one goes on where it was. BinariesEnv takes its place.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	if built := os.Getenv(BinariesEnv); built != "" {
		return built, nil
	}
	module, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	cache, err := images.CacheDir()
	if err != nil {
		return "", err
	}
	key, err := buildKey(module)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, binariesPrefix+key)
	// Several test binaries may ask at once: one builds, the others wait for it.
	lock, err := os.OpenFile(filepath.Join(cache, "kube.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another build of Kubernetes: %w", err)
	}
	if _, err := os.Stat(dir); err == nil {
		now := time.Now()
		return dir, os.Chtimes(dir, now, now)
	}
	if err := build(ctx, module, dir, progress); err != nil {
		return "", fmt.Errorf("build Kubernetes in %s: %w", module, err)
	}
	return dir, removeOld(cache, time.Now().Add(-keepBinaries))
}

// buildKey names what the binaries are made of.
func buildKey(module string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d:%s", len(data), data)
	}
	fmt.Fprint(h, runtime.Version(), runtime.GOARCH)
	return fmt.Sprintf("%x", h.Sum(nil))[:16], nil
}

// build makes a folder beside dir, which appears when it is complete.
func build(ctx context.Context, module, dir string, progress io.Writer) error {
	flags, err := pinned.KubernetesFlags(ctx, module)
	if err != nil {
		return err
	}
	total, err := packagesToBuild(ctx, module)
	if err != nil {
		return err
	}
	tmp := dir + ".building"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(progress, "Building etcd and Kubernetes for the test cluster: %d packages, 10 minutes for all "+
		"2,700 on 2 cores; the next run finds them in %s\n", total, dir)
	cmd := goCommand(ctx, module, "build", "-v", "-trimpath", "-ldflags="+flags, "-o", tmp+"/", "tool")
	out := &buildOutput{to: progress, total: total, start: time.Now()}
	cmd.Stderr = out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.Join(out.errors, "\n"))
	}
	for name, built := range tools {
		if err := os.Rename(filepath.Join(tmp, built), filepath.Join(tmp, name)); err != nil {
			return fmt.Errorf("the tools of go.mod do not include %s: %w", name, err)
		}
	}
	_, _ = fmt.Fprintf(progress, "Built etcd and Kubernetes in %v\n", time.Since(out.start).Round(time.Second))
	return os.Rename(tmp, dir)
}

// packagesToBuild counts the packages that Go's own cache does not hold.
func packagesToBuild(ctx context.Context, module string) (int, error) {
	out, err := goCommand(ctx, module, "list", "-trimpath", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}",
		"tool").Output()
	if err != nil {
		return 0, fmt.Errorf("list the packages: %w", explain(err))
	}
	return len(strings.Fields(string(out))), nil
}

func goCommand(ctx context.Context, module string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	// What the caller's build is made with (-race, -tags, -mod) is nothing to these programs.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOOS=", "GOARCH=")
	return cmd
}

// explain adds what a command has said to how it ended.
func explain(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// buildOutput reads what "go build -v" writes, a line for each package, and tells of it from time
// to time. What is no package is an error.
type buildOutput struct {
	to          io.Writer
	total, done int
	start, told time.Time
	rest        string
	errors      []string
}

func (b *buildOutput) Write(data []byte) (int, error) {
	lines := strings.Split(b.rest+string(data), "\n")
	b.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		switch {
		case strings.HasPrefix(line, "go: downloading "):
		case strings.ContainsAny(line, " \t:"):
			b.errors = append(b.errors, line)
		default:
			b.done++
		}
	}
	if now := time.Now(); now.Sub(b.told) >= progressInterval {
		b.told = now
		_, _ = fmt.Fprintf(b.to, "  %d of %d packages, %v\n", b.done, max(b.done, b.total),
			now.Sub(b.start).Round(time.Second))
	}
	return len(data), nil
}

// removeOld removes the binaries that nobody has asked for since a time.
func removeOld(cache string, before time.Time) error {
	dirs, err := filepath.Glob(filepath.Join(cache, binariesPrefix+"????????????????"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range slices.Sorted(slices.Values(dirs)) {
		if info, err := os.Stat(dir); err == nil && info.ModTime().Before(before) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// moduleDir finds the folder test/kube of this checkout.
func moduleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-json=Dir", "github.com/edgecore-io/edgecore").Output()
	if err != nil {
		return "", fmt.Errorf("find the folder of the module edgecore: %w", explain(err))
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", fmt.Errorf("find the folder of the module edgecore: %w", err)
	}
	return filepath.Join(module.Dir, "test", "kube"), nil
}
