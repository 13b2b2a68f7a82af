package repair

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"
)

// writeArchive writes an archive that names an image.
func writeArchive(t *testing.T, file, image string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc := []byte(`[{"RepoTags":["` + image + `"]}]`)
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: "manifest.json", Size: int64(len(doc)), Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(doc); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestArchiveWith(t *testing.T) {
	dir := t.TempDir()
	if file, err := archiveWith(filepath.Join(dir, "none"), []string{"a"}); file != "" || err != nil {
		t.Errorf("%q, %v: a folder that is not there is empty; want \"\", no error", file, err)
	}
	writeArchive(t, filepath.Join(dir, "b.tar"), "app:1")
	writeArchive(t, filepath.Join(dir, "c.text"), "site.example/other:2")
	if err := os.WriteFile(filepath.Join(dir, "a.tar"), []byte("torn"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"docker.io/library/app:1": "b.tar", "site.example/other:2": "", "app:2": "",
	} {
		file, err := archiveWith(dir, []string{"x", name})
		if err != nil || file != "" && filepath.Base(file) != want || file == "" && want != "" {
			t.Errorf("%s: %q, %v; want %q, no error", name, file, err, want)
		}
	}
}
