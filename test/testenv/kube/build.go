package kube

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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
	binariesPrefix = "kube-"
	keepBinaries   = 14 * 24 * time.Hour
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
	module, err := pinned.Module(ctx, "kube")
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
	total, err := pinned.PackagesToBuild(ctx, module, false, "", "tool")
	if err != nil {
		return err
	}
	tmp := dir + ".building"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(progress, "Building etcd and Kubernetes for the test cluster: %d packages, 10 minutes for all "+
		"2,700 on 2 cores; the next run finds them in %s\n", total, dir)
	cmd := pinned.Go(ctx, module, false, "build", "-v", "-trimpath", "-ldflags="+flags, "-o", tmp+"/", "tool")
	out := pinned.NewProgress(progress, total)
	cmd.Stderr = out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, out.Errors())
	}
	for name, built := range tools {
		if err := os.Rename(filepath.Join(tmp, built), filepath.Join(tmp, name)); err != nil {
			return fmt.Errorf("the tools of go.mod do not include %s: %w", name, err)
		}
	}
	_, _ = fmt.Fprintf(progress, "Built etcd and Kubernetes in %v\n", out.Took())
	return os.Rename(tmp, dir)
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
