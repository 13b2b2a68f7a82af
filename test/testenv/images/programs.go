package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	_ "embed" // the source of pause
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

//go:embed pause/pause.c
var pauseSource []byte

// recipe is raised whenever All would build other images from the same programs.
const recipe = "2"

// CacheDir is where things that cost time to make are kept between runs. It exists.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir() // no HOME, as in some CI systems
	}
	dir := filepath.Join(base, "edgecore-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	return dir, nil
}

// key names the content of the archive.
func key(busybox []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(recipe), []byte(runtime.GOARCH), []byte(applets), pauseSource, busybox} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:16]
}

// findBusybox reads the machine's busybox, which must not need libraries: the images have none.
func findBusybox() ([]byte, error) {
	for _, p := range []string{"/bin/busybox", "/usr/bin/busybox", "/usr/local/bin/busybox"} {
		data, err := os.ReadFile(p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := checkStatic(data); err != nil {
			return nil, fmt.Errorf("%s: %w; install the Debian package busybox-static (hack/setup does)", p, err)
		}
		return data, nil
	}
	return nil, errors.New("no busybox on this machine; install the Debian package busybox-static (hack/setup does)")
}

func checkStatic(program []byte) error {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("not a program: %w", err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("linked dynamically")
		}
	}
	return nil
}

// compilePause builds the sandbox program: C, since a sandbox's memory counts once for each pod.
func compilePause(ctx context.Context) ([]byte, error) {
	dir, err := os.MkdirTemp("", "pause-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "pause")
	cmd := exec.CommandContext(ctx, "gcc", "-static", "-Os", "-s", "-Wall", "-Werror", "-x", "c", "-o", out, "-")
	cmd.Stdin = bytes.NewReader(pauseSource)
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile pause: %w\n%s(gcc and libc6-dev are needed; hack/setup installs them)", err,
			msg)
	}
	return os.ReadFile(out)
}

func references(all []Image) (map[name.Reference]v1.Image, error) {
	refs := make(map[name.Reference]v1.Image, len(all))
	for _, img := range all {
		tag, err := name.NewTag(img.Name)
		if err != nil {
			return nil, err
		}
		refs[tag] = img.Image
	}
	return refs, nil
}
