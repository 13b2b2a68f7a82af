// Command image makes the image of cloudcore or a mapper without Docker: an archive that `docker load` and `ctr images
// import` take, or an image in a registry.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	binary := flag.String("binary", "bin/cloudcore", "the static `program` to put into the image")
	out := flag.String("out", "bin/cloudcore-image.tar", "the `archive` to write")
	tag := flag.String("name", "edgecore.local/cloudcore:latest", "the image's `name` in the archive")
	push := flag.String("push", "", "push it to a registry under this `name` instead; the login is Docker's")
	user := flag.String("user", "65532:65532", "the `UID:GID` that the program runs as")
	arch := flag.String("arch", runtime.GOARCH, "the program's `architecture`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *binary, *arch, *user, *tag, *out, *push); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, binary, arch, user, tag, out, push string) error {
	img, err := build(binary, arch, user)
	if err != nil {
		return err
	}
	if push != "" {
		ref, err := name.NewTag(push)
		if err != nil {
			return fmt.Errorf("--push %s: %w", push, err)
		}
		if err := remote.Write(ref, img, remote.WithContext(ctx),
			remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", ref, err)
		}
		fmt.Println("pushed", ref)
		return nil
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		return fmt.Errorf("--name %s: %w", tag, err)
	}
	if err := tarball.WriteToFile(out, ref, img); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	fmt.Printf("%s has %s; load it with `docker load -i %s` or `ctr -n k8s.io images import %s`\n", out, ref, out, out)
	return nil
}

// build makes the image: the program and nothing else. Its bytes depend on the program's only.
func build(binary, arch, user string) (v1.Image, error) {
	program, err := os.ReadFile(binary)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s; `make build` makes it", binary)
	}
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{
		Name:   filepath.Base(binary),
		Mode:   0o755,
		Size:   int64(len(program)),
		Format: tar.FormatPAX,
	}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/" + filepath.Base(binary)},
			Env:        []string{"PATH=/"}, // for `kubectl exec deploy/cloudcore -- cloudcore gettoken`
			User:       user,
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, l)
}
