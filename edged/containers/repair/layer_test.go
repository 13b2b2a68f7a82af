package repair

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

var long = bytes.Repeat([]byte("0123456789abcdef"), 20_000)

// aLayer is an archive with each kind of file that images have.
func aLayer(t testing.TB, more ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	content := map[string][]byte{"app/run": long, "app/lib.so": long[7:], "etc/passwd": []byte("root:x:0:0::/:\n"),
		"app/twice": []byte("second"), "app/suid": []byte("su")}
	for _, h := range append([]tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "app/", Typeflag: tar.TypeDir, Mode: 0o750},
		{Name: "app/run", Mode: 0o755},
		{Name: "app/lib.so", Mode: 0o644},
		{Name: "app/suid", Mode: 0o4755},
		{Name: "app/empty", Mode: 0o644},
		{Name: "app/hard", Typeflag: tar.TypeLink, Linkname: "app/run", Mode: 0o755},
		{Name: "app/soft", Typeflag: tar.TypeSymlink, Linkname: "../etc/passwd"},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/passwd", Mode: 0o600},
		{Name: "app/twice", Mode: 0o644},
		{Name: "var/.wh.gone"},
		{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600},
	}, more...) {
		data := content[h.Name]
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Size, h.Uid, h.Gid, h.ModTime = int64(len(data)), os.Getuid(), os.Getgid(), time.Unix(1_700_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// files lists a folder with all that matters of each file.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + info.ModTime().UTC().String() + " " + string(data)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " " + to
		}
		all[strings.TrimPrefix(path, dir)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// unpack makes a layer of an archive, and returns its folder.
func unpack(t *testing.T, archive []byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "7", "fs")
	if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	mendIn(t, dir, archive, damage{all: true})
	return dir
}

func mendIn(t *testing.T, dir string, archive []byte, found damage) {
	t.Helper()
	l, err := openLayer(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if err := l.repairFiles(t.Context(), bytes.NewReader(archive), found); err != nil {
		t.Fatal(err)
	}
}

// tarIn returns the archive in a blob.
func tarIn(t *testing.T, blob []byte) io.Reader {
	t.Helper()
	plain, err := unpacked(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func compareIn(t *testing.T, dir string, archive []byte) damage {
	t.Helper()
	found, err := compareFolder(t.Context(), layerOf{dir: dir}, tarIn(t, archive))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestLayerIsMended: each kind of damage is found, named, and put right, and nothing else is touched.
func TestLayerIsMended(t *testing.T) {
	archive := aLayer(t)
	for name, tc := range map[string]struct {
		spoil func(dir string) error
		want  map[string]string
	}{
		"nothing": {func(string) error { return nil }, nil},
		"an empty program": {func(dir string) error { return os.Truncate(dir+"/app/run", 0) },
			// and app/hard, which is the same file
			map[string]string{"app/run": "is empty, and should have 320000 bytes"}},
		"half a library": {func(dir string) error { return os.Truncate(dir+"/app/lib.so", 100_000) },
			map[string]string{"app/lib.so": "has 100000 bytes, and should have 319993"}},
		"zeros at the end": {
			func(dir string) error {
				return os.WriteFile(dir+"/app/lib.so",
					append(bytes.Clone(long[7:200_007]), make([]byte, len(long)-200_007)...), 0o644)
			}, map[string]string{"app/lib.so": "does not have the expected content"},
		},
		"a file that is gone": {func(dir string) error {
			return os.Remove(dir + "/etc/passwd")
		}, map[string]string{"etc/passwd": "is missing"}},
		"a folder that is gone": {func(dir string) error { return os.RemoveAll(dir + "/etc") },
			map[string]string{"etc": "is missing", "etc/passwd": "is missing"}},
		"a mode that is gone": {func(dir string) error {
			return os.Chmod(dir+"/app/suid", 0o600)
		}, map[string]string{"app/suid": "has the mode -rw-------, and should have urwxr-xr-x"}},
		"a link that is gone": {func(dir string) error {
			return os.Remove(dir + "/app/soft")
		}, map[string]string{"app/soft": "is missing"}},
		"a link to elsewhere": {func(dir string) error {
			return errorsOf(os.Remove(dir+"/app/soft"), os.Symlink("/", dir+"/app/soft"))
		}, map[string]string{"app/soft": "does not lead to ../etc/passwd"}},
		"a removal that is": {func(dir string) error {
			return os.Remove(dir + "/var/gone")
		}, map[string]string{"var/.wh.gone": "the mark of its removal is missing"}},
		"a folder for a file": {func(dir string) error {
			return errorsOf(os.Remove(dir+"/pipe"), os.Mkdir(dir+"/app/run.d", 0o700), os.Remove(dir+"/app/empty"),
				os.Mkdir(dir+"/app/empty", 0o700))
		}, map[string]string{"pipe": "is missing", "app/empty": "is not a file"}},
		"a file for a folder": {func(dir string) error {
			return errorsOf(os.RemoveAll(dir+"/etc"), os.WriteFile(dir+"/etc", nil, 0o600))
		}, map[string]string{"etc": "is not a folder", "etc/passwd": "is missing"}},
		"two of the same file": {func(dir string) error {
			return errorsOf(os.Remove(dir+"/app/hard"), os.WriteFile(dir+"/app/hard", long, 0o755))
		}, map[string]string{"app/hard": "is not the same file as app/run"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, archive)
			before := files(t, dir)
			if found := compareIn(t, dir, archive); !found.none() {
				t.Fatalf("faults of an undamaged layer = %v, want none", found.files)
			}
			if err := tc.spoil(dir); err != nil {
				t.Fatal(err)
			}
			extra := files(t, dir)
			found := compareIn(t, dir, archive)
			if diff := cmp.Diff(tc.want, found.files); diff != "" {
				t.Errorf("damage (-want +got):\n%s", diff)
			}
			mendIn(t, dir, archive, found)
			after := files(t, dir)
			if _, kept := extra["/app/run.d"]; kept {
				delete(after, "/app/run.d") // what is not in the archive is not touched
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("after the repair (-want +got):\n%s", diff)
			}
			if found := compareIn(t, dir, archive); !found.none() {
				t.Errorf("faults after the repair = %v, want none", found.files)
			}
			if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
				t.Errorf("something is left beside the layer: %v, %v; want no error, one", left, err)
			}
		})
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestLayerThatIsGone: also the folder that holds the layer's.
func TestLayerThatIsGone(t *testing.T) {
	archive := aLayer(t)
	dir := unpack(t, archive)
	before := files(t, dir)
	if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	found := compareIn(t, dir, archive)
	if !found.all {
		t.Fatalf("compare found %+v, want all of the layer missing", found)
	}
	if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	mendIn(t, dir, archive, found)
	if diff := cmp.Diff(before, files(t, dir)); diff != "" {
		t.Errorf("files mismatch (-want +got):\n%s", diff)
	}
}

// TestHostileLayer: what leads out of a layer is neither read nor written.
func TestHostileLayer(t *testing.T) {
	archive := aLayer(t,
		tar.Header{Name: "../../outside", Mode: 0o644}, tar.Header{Name: "/../outside", Mode: 0o644},
		tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "../.."},
		tar.Header{Name: "out/outside", Mode: 0o644},
		tar.Header{Name: "abs", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		tar.Header{Name: "abs/hostile", Mode: 0o644})
	root := t.TempDir()
	dir := filepath.Join(root, "1", "fs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	found := compareIn(t, dir, archive)
	l, err := openLayer(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if err := l.repairFiles(t.Context(), bytes.NewReader(archive), found); err == nil {
		t.Error("mend(a path that leads out of the layer) = nil, want an error")
	}
	for _, path := range []string{filepath.Join(root, "outside"), filepath.Join(root, "1", "outside"), "/etc/hostile"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s exists, want it not to", path)
		}
	}
}

// TestBottomLayer: below the lowest layer there is nothing to remove.
func TestBottomLayer(t *testing.T) {
	archive := aLayer(t)
	dir := unpack(t, archive)
	if err := os.Remove(dir + "/var/gone"); err != nil {
		t.Fatal(err)
	}
	found, err := compareFolder(t.Context(), layerOf{dir: dir, bottom: true}, tarIn(t, archive))
	if err != nil || !found.none() {
		t.Errorf("compareFolder() = %v, %v; want no damage", found, err)
	}
}

// TestOpaqueFolder: a folder that hides those of the same name below it does so again when it was lost.
func TestOpaqueFolder(t *testing.T) {
	archive := aLayer(t, tar.Header{Name: "hides/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "hides/.wh..wh..opq"})
	dir := unpack(t, archive)
	if err := os.RemoveAll(dir + "/hides"); err != nil {
		t.Fatal(err)
	}
	mendIn(t, dir, archive, compareIn(t, dir, archive))
	value := make([]byte, 8)
	if n, err := unix.Lgetxattr(dir+"/hides", "trusted.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
		t.Errorf("the extended attribute is %q, %v; want \"y\"", value[:n], err)
	}
}

func FuzzCompareLayer(f *testing.F) {
	f.Add(aLayer(f))
	f.Add([]byte("no archive"))
	f.Add(aLayer(f, tar.Header{Name: strings.Repeat("a/", 50<<10) + "a", Typeflag: tar.TypeReg}))
	f.Add(aLayer(f, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("b", 100<<10)}))
	var many []tar.Header
	for i := range 500 {
		many = append(many, tar.Header{Name: fmt.Sprintf("%0200d", i), Typeflag: tar.TypeDir, Mode: 0o755})
	}
	f.Add(aLayer(f, many...))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := filepath.Join(t.TempDir(), "fs")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var found damage
		var err error
		// A record of 512 bytes becomes a header, a path that is resolved and what is said of it; a field of a PAX
		// header of 5 bytes becomes an entry of a map.
		membound.Check(t, membound.Linear(len(data), 256), func() {
			var plain io.Reader
			if plain, err = unpacked(bytes.NewReader(data)); err == nil {
				found, err = compareFolder(t.Context(), layerOf{dir: dir}, plain)
			}
		})
		if err != nil {
			return
		}
		for name := range found.files {
			if !filepath.IsLocal(name) {
				t.Errorf("compareLayer reports %q, want a path inside the layer", name)
			}
		}
	})
}

// TestModeOfLink: where the names of a file differ in their mode, the last one counts; it is no damage.
func TestModeOfLink(t *testing.T) {
	archive := aLayer(t, tar.Header{Name: "app/other", Typeflag: tar.TypeLink, Linkname: "app/lib.so", Mode: 0o500})
	dir := unpack(t, archive)
	if err := os.Chmod(dir+"/app/other", 0o500); err != nil {
		t.Fatal(err)
	}
	if found := compareIn(t, dir, archive); !found.none() {
		t.Errorf("damaged files %v, want none", found.files)
	}
	if err := os.Chmod(dir+"/app/other", 0o400); err != nil {
		t.Fatal(err)
	}
	if found := compareIn(t, dir, archive); len(found.files) != 1 {
		t.Errorf("damaged files %v, want one", found.files)
	}
}
