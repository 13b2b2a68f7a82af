// Package images builds the container images that make run, the tests and the benchmarks use, out
// of Debian's static busybox and a pause program of a few lines. No registry is needed, ever.
//
// All images live in one archive in the form that "docker save" writes. It is made once for each
// content (busybox, pause, recipes) and kept in the user's cache folder.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Names of the images. The domain does not resolve: an image that is not loaded cannot be pulled.
const (
	// Pause is the sandbox image.
	Pause = "edgecore.local/pause:1"
	// Demo has busybox with all its applets, a shell as its command, and a page in /www.
	Demo = "edgecore.local/demo:1"
	// Entrypoint has an entrypoint ("sleep"), a command ("3600"), a working dir (/srv) and
	// variables (GREETING=hello), so that a pod may override each of them.
	Entrypoint = "edgecore.local/entrypoint:1"
	// NonRoot runs as uid 1000, gid 1000; NonRootName as the user "app", who has the same ids.
	NonRoot     = "edgecore.local/nonroot:1"
	NonRootName = "edgecore.local/nonroot-name:1"
	// Groups runs as the user "app" (uid and gid 1000), whom the image puts into the group 50000, too.
	Groups = "edgecore.local/groups:1"
	// NoCommand has neither an entrypoint nor a command.
	NoCommand = "edgecore.local/nocommand:1"
	// StopSignal asks to be stopped by SIGUSR1; its command exits 7 when that arrives and
	// ignores SIGTERM.
	StopSignal = "edgecore.local/stopsignal:1"
	// Volume declares a volume at /data.
	Volume = "edgecore.local/volume:1"
)

// Names are those of every image.
func Names() []string {
	return []string{Pause, Demo, Entrypoint, NonRoot, NonRootName, Groups, NoCommand, StopSignal, Volume}
}

// Image is one image and its name.
type Image struct {
	Name  string
	Image v1.Image
}

// All returns every image, built from the busybox and pause programs given.
func All(busybox, pause []byte) ([]Image, error) {
	pauseLayer, err := layer([]file{{name: "pause", mode: 0o755, data: pause}})
	if err != nil {
		return nil, err
	}
	demoLayer, err := layer(demoFiles(busybox))
	if err != nil {
		return nil, err
	}
	groupsLayer, err := layer(append(without("etc/group", demoFiles(busybox)),
		file{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\napp:x:1000:\nextra:x:50000:app\n")}))
	if err != nil {
		return nil, err
	}
	recipes := []struct {
		name   string
		layer  v1.Layer
		config v1.Config
	}{
		{Pause, pauseLayer, v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}},
		{Demo, demoLayer, v1.Config{Cmd: []string{"sh"}}},
		{Entrypoint, demoLayer, v1.Config{
			Entrypoint: []string{"sleep"},
			Cmd:        []string{"3600"},
			WorkingDir: "/srv",
			Env:        []string{"GREETING=hello"},
		}},
		{NonRoot, demoLayer, v1.Config{Cmd: []string{"sleep", "3600"}, User: "1000:1000"}},
		{NonRootName, demoLayer, v1.Config{Cmd: []string{"sleep", "3600"}, User: "app"}},
		{Groups, groupsLayer, v1.Config{Cmd: []string{"sleep", "3600"}, User: "app"}},
		{NoCommand, demoLayer, v1.Config{}},
		{
			StopSignal, demoLayer, v1.Config{
				Cmd: []string{
					"sh", "-c", "trap '' TERM; trap 'exit 7' USR1; while :; do sleep 1 & wait $!; done",
				},
				StopSignal: "SIGUSR1",
			},
		},
		{Volume, demoLayer, v1.Config{Cmd: []string{"sleep", "3600"}, Volumes: map[string]struct{}{"/data": {}}}},
	}
	all := make([]Image, 0, len(recipes))
	for _, r := range recipes {
		r.config.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			r.config.Env...)
		img, err := build(r.layer, r.config)
		if err != nil {
			return nil, fmt.Errorf("build image %s: %w", r.name, err)
		}
		all = append(all, Image{r.name, img})
	}
	return all, nil
}

// build makes an image for this machine's architecture. Its bytes depend on its content only.
func build(l v1.Layer, config v1.Config) (v1.Image, error) {
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		Config: config,
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, l)
}

// file is one entry of a layer: a folder when its name ends in "/", a link when link is set.
type file struct {
	name string
	mode int64
	uid  int
	data []byte
	link string
}

func demoFiles(busybox []byte) []file {
	files := []file{
		{name: "bin/", mode: 0o755}, {name: "etc/", mode: 0o755}, {name: "root/", mode: 0o700},
		{name: "srv/", mode: 0o755}, {name: "www/", mode: 0o755}, {name: "var/", mode: 0o755},
		{name: "home/", mode: 0o755}, {name: "home/app/", mode: 0o755, uid: 1000},
		{name: "tmp/", mode: 0o1777}, {name: "data/", mode: 0o755},
		{name: "data/seed", mode: 0o644, data: []byte("from the image\n")},
		{
			name: "etc/passwd", mode: 0o644,
			data: []byte("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n"),
		},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\napp:x:1000:\n")},
		{name: "www/index.html", mode: 0o644, data: []byte("edgecore demo\n")},
		{name: "bin/busybox", mode: 0o755, data: busybox},
	}
	for _, applet := range strings.Fields(applets) {
		files = append(files, file{name: "bin/" + applet, link: "busybox"})
	}
	return files
}

func without(name string, files []file) []file {
	return slices.DeleteFunc(files, func(f file) bool { return f.name == name })
}

// applets are the busybox programs that the images offer.
const applets = `awk basename cat chgrp chmod chown cp cut date dd df dirname dmesg du echo env expr
false find free grep head hostname httpd id ifconfig ip kill killall ln ls md5sum mkdir mkfifo mknod mktemp
mount mv nc netstat nproc nslookup ping printf ps pwd readlink rm rmdir route sed seq sh sha256sum
sleep sort stat stty sync sysctl tail tar tee telnet test time timeout top touch tr traceroute true umount uname
uniq uptime usleep vi wc wget which whoami xargs yes`

// layer packs files, sorted by name and with the epoch as their time, into an image layer.
func layer(files []file) (v1.Layer, error) {
	sort.SliceStable(files, func(i, j int) bool { return files[i].name < files[j].name })
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{
			Name:     f.name,
			Mode:     f.mode,
			Uid:      f.uid,
			Gid:      f.uid,
			ModTime:  time.Unix(0, 0),
			Typeflag: tar.TypeReg,
			Size:     int64(len(f.data)),
		}
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	data := buf.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
}

// ArchiveEnv names an archive that was built before, for machines that have no C compiler.
const ArchiveEnv = "EDGECORE_TEST_IMAGES"

// Archive returns the path of the archive with all images, building it when the cache has none
// for the programs of this machine. Several processes may ask at once. ArchiveEnv takes its place.
func Archive(ctx context.Context) (string, error) {
	if built := os.Getenv(ArchiveEnv); built != "" {
		return built, nil
	}
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	busybox, err := findBusybox()
	if err != nil {
		return "", err
	}
	target := filepath.Join(dir, "images-"+key(busybox)+".tar")
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	pause, err := compilePause(ctx)
	if err != nil {
		return "", err
	}
	all, err := All(busybox, pause)
	if err != nil {
		return "", err
	}
	return target, write(target, all)
}

// write puts the archive at target in one step, so that nobody ever reads half of it.
func write(target string, all []Image) error {
	refs, err := references(all)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(path.Dir(target), ".images-*")
	if err != nil {
		return fmt.Errorf("write image archive: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if err := tarball.MultiRefWrite(refs, tmp); err != nil {
		_ = tmp.Close()
		return fmt.Errorf("write image archive: %w", err)
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("write image archive: %w", err)
	}
	return os.Rename(tmp.Name(), target)
}
