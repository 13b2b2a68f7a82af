package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// Archive returns the path of an archive with the images that pods need on machines of an architecture: those of this
// system's own are built once for all tests, others into a folder.
func Archive(ctx context.Context, arch, dir string) (string, error) {
	if arch == runtime.GOARCH {
		return images.Archive(ctx)
	}
	img, err := BuildImage(ctx, arch)
	if err != nil {
		return "", err
	}
	busybox, err := os.ReadFile(img.Busybox)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "pause")
	if err := goCommand(ctx, []string{"CGO_ENABLED=0", "GOARCH=" + arch}, "build", "-ldflags", "-s -w", "-o", program,
		"./test/vm/pause"); err != nil {
		return "", err
	}
	pause, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	refs := map[name.Reference]v1.Image{}
	for image, files := range map[string][]layerFile{
		images.Pause: {{name: "pause", mode: 0o755, data: pause}},
		images.Demo:  withBusybox(busybox),
	} {
		config := v1.Config{Cmd: []string{"sh"}}
		if image == images.Pause {
			config = v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}
		}
		if err := add(refs, image, arch, config, files); err != nil {
			return "", err
		}
	}
	target := filepath.Join(dir, "images-"+arch+".tar")
	return target, writeArchive(target, refs)
}

// ExtraImage writes an archive with one image whose layer no other image has: it is unpacked where it is imported. Seed
// makes its bytes.
func ExtraImage(target, image, arch string, busybox []byte, seed uint64) error {
	salt := make([]byte, 64<<10)
	source := rand.New(rand.NewPCG(seed, 2))
	for i := range salt {
		salt[i] = byte(source.Uint32())
	}
	refs := map[name.Reference]v1.Image{}
	if err := add(refs, image, arch, v1.Config{Cmd: []string{"sh"}},
		append(withBusybox(busybox), layerFile{name: "salt", mode: 0o644, data: salt})); err != nil {
		return err
	}
	return writeArchive(target, refs)
}

// layerFile is a file of a layer; without data it is a folder, and with a link that.
type layerFile struct {
	name string
	mode int64
	data []byte
	link string
}

// withBusybox is a system with what the tests' pods call.
func withBusybox(busybox []byte) []layerFile {
	files := []layerFile{{name: "bin/", mode: 0o755}, {name: "etc/", mode: 0o755}, {name: "tmp/", mode: 0o777},
		{name: "bin/busybox", mode: 0o755, data: busybox}}
	for _, applet := range []string{"sh", "sleep", "cat", "true", "wget", "httpd"} {
		files = append(files, layerFile{name: "bin/" + applet, mode: 0o777, link: "busybox"})
	}
	return files
}

func add(refs map[name.Reference]v1.Image, image, arch string, config v1.Config, files []layerFile) error {
	ref, err := name.NewTag(image)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	if err := packLayer(&buf, files); err != nil {
		return fmt.Errorf("pack %s: %w", image, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		return err
	}
	config.Env = []string{"PATH=/bin"}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: arch,
		Config:       config,
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	refs[ref] = img
	return err
}

func packLayer(w io.Writer, files []layerFile) error {
	out := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg, Linkname: f.link}
		switch {
		case f.link != "":
			h.Typeflag = tar.TypeSymlink
		case f.data == nil:
			h.Typeflag = tar.TypeDir
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(f.data); err != nil {
			return err
		}
	}
	return out.Close()
}

func writeArchive(target string, refs map[name.Reference]v1.Image) error {
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tarball.MultiRefWrite(refs, f); err != nil {
		return fmt.Errorf("write %s: %w", target, err)
	}
	return f.Close()
}
