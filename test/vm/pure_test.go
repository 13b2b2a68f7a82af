package vm

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestNextVersion(t *testing.T) {
	for control, want := range map[string]string{
		"Package: a\nVersion: 1.2\nSection: b\n": "Package: a\nVersion: 1.2+next1\nSection: b\n",
		"Version: 0~x":                           "Version: 0~x+next1",
		"Package: a\n":                           "",
	} {
		got, found := nextVersion(control, "+next1")
		if !found {
			got = ""
		}
		if got != want {
			t.Errorf("%q: %q, want %q", control, got, want)
		}
	}
}

func TestBoards(t *testing.T) {
	if _, err := boardOf("vax"); err == nil || !strings.Contains(err.Error(), "amd64 and arm64") {
		t.Errorf("boardOf(\"vax\"): %v, want an error that names amd64 and arm64", err)
	}
	b, err := boardOf(ARM64)
	if err != nil {
		t.Fatal(err)
	}
	line := b.registration("qemu-aarch64")
	if f := strings.Split(line, ":"); len(f) != 8 || f[1] != "qemu-aarch64" || f[2] != "M" ||
		f[6] != "/usr/bin/qemu-aarch64-static" || f[7] != "F" ||
		// 20 bytes of an ELF header, of which three are letters
		strings.Count(f[4], `\x`)+3 != 20 || strings.Count(f[5], `\x`) != 20 {
		t.Errorf("registration = %s, want magic and mask of 20 bytes for /usr/bin/qemu-aarch64-static", line)
	}
	if amd, arm := recipe(AMD64), recipe(ARM64); amd == arm {
		t.Errorf("recipe(%s) = recipe(%s) = %v, want them to differ", AMD64, ARM64, amd)
	}
}

// TestMonitor: events and greetings are no answers, and what qemu refuses is reported.
func TestMonitor(t *testing.T) {
	for what, c := range map[string]struct {
		says []string
		want string
	}{
		"fine": {says: []string{`{"QMP":{}}`, `{"return":{}}`, `{"event":"RESUME"}`, `{"return":{}}`}},
		"refused": {
			says: []string{
				`{"QMP":{}}`, `{"return":{}}`, `{"error":{"class":"GenericError","desc":"Device 'nic' not found"}}`,
			}, want: "set_link: Device 'nic' not found",
		},
		"gone": {says: []string{`{"QMP":{}}`, `{"return":{}}`}, want: "set_link: EOF"},
	} {
		here, qemu := socketPair(t)
		got := make(chan []string)
		go func() {
			defer close(got)
			in := json.NewDecoder(qemu)
			var asked []string
			for i, line := range c.says {
				if i == 1 || i > 1 && !strings.Contains(line, "event") {
					var command qmpCommand
					if in.Decode(&command) != nil {
						break
					}
					asked = append(asked, command.Execute)
				}
				if _, err := io.WriteString(qemu, line+"\n"); err != nil {
					break
				}
			}
			if c.want != "" && strings.HasSuffix(c.want, "EOF") {
				var command qmpCommand
				_ = in.Decode(&command) // the last, which nobody answers
			}
			_ = qemu.Close()
			got <- asked
		}()
		err := converse(here, []qmpCommand{{Execute: "qmp_capabilities"}, cable(false)})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		_ = here.Close()
		if asked := <-got; c.want == "" && !cmp.Equal(asked, []string{"qmp_capabilities", "set_link"}) {
			t.Errorf("%s: commands = %q, want qmp_capabilities, set_link", what, asked)
		}
	}
}

// socketPair is a connection, which has buffers as qemu's have.
func socketPair(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if here, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// TestExtraImages: images of different seeds share no layer, and have what a pod calls.
func TestExtraImages(t *testing.T) {
	dir := t.TempDir()
	layers := map[string]bool{}
	for i, image := range []string{"edgecore.local/a:1", "edgecore.local/b:1"} {
		path := filepath.Join(dir, image[len(image)-3:len(image)-2]+".tar")
		if err := ExtraImage(path, image, ARM64, []byte("busybox"), uint64(i)); err != nil {
			t.Fatal(err)
		}
		tag, err := name.NewTag(image)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(path, &tag)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || config.Architecture != ARM64 {
			t.Errorf("%s: configuration %+v, %v, want architecture %s", image, config, err, ARM64)
		}
		all, err := img.Layers()
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %d layers, %v, want 1", image, len(all), err)
		}
		digest, err := all[0].Digest()
		if err != nil {
			t.Fatal(err)
		}
		layers[digest.String()] = true
	}
	if len(layers) != 2 {
		t.Errorf("layers = %v, want 2", layers)
	}
	var buf bytes.Buffer
	if err := packLayer(&buf, withBusybox([]byte("busybox"))); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]byte{}
	for r := tar.NewReader(&buf); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds[h.Name] = h.Typeflag
	}
	if kinds["bin/"] != tar.TypeDir || kinds["bin/busybox"] != tar.TypeReg || kinds["bin/sh"] != tar.TypeSymlink {
		t.Errorf("entries = %v, want folder bin/, file bin/busybox, link bin/sh", kinds)
	}
}
