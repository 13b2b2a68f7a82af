package volume

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestSameFiles: any difference between a folder and the files that it should hold is found.
func TestSameFiles(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789"), 500)
	files := func() []file {
		return []file{{path: "a/b", data: []byte("x"), mode: 0o644}, {path: "empty", mode: 0o600},
			{path: "long", data: bytes.Clone(long), mode: 0o644}}
	}
	for name, change := range map[string]func(dir string, files []file) error{
		"last byte":  func(_ string, files []file) error { files[2].data[len(long)-1]++; return nil },
		"longer":     func(_ string, files []file) error { files[2].data = append(files[2].data, 'x'); return nil },
		"shorter":    func(_ string, files []file) error { files[2].data = long[:len(long)-1]; return nil },
		"mode":       func(_ string, files []file) error { files[0].mode = 0o600; return nil },
		"owner":      func(_ string, files []file) error { files[0].uid = 1; return nil },
		"group":      func(_ string, files []file) error { files[0].gid = 1; return nil },
		"other name": func(_ string, files []file) error { files[1].path = "a/empty"; return nil },
		"extra file": func(dir string, _ []file) error { return os.WriteFile(filepath.Join(dir, "a/c"), nil, 0o644) },
		"missing":    func(dir string, _ []file) error { return os.Remove(filepath.Join(dir, "empty")) },
		"no folder":  func(dir string, _ []file) error { return os.RemoveAll(dir) },
		"a folder": func(dir string, _ []file) error {
			return replaced(dir, func(p string) error { return os.Mkdir(p, 0o600) })
		},
		"a link": func(dir string, _ []file) error {
			return replaced(dir, func(p string) error { return os.Symlink("long", p) })
		},
		"linked folder": func(dir string, _ []file) error {
			if err := os.Rename(filepath.Join(dir, "a"), dir+"-a"); err != nil {
				return err
			}
			return os.Symlink(dir+"-a", filepath.Join(dir, "a"))
		},
		"linked data": func(dir string, _ []file) error {
			if err := os.Rename(dir, dir+"-1"); err != nil {
				return err
			}
			return os.Symlink(dir+"-1", dir)
		},
		"extra link": func(dir string, _ []file) error { return os.Symlink("long", filepath.Join(dir, "link")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, want := filepath.Join(t.TempDir(), "data"), files()
			if err := writeFiles(dir, payload{files: want}); err != nil {
				t.Fatal(err)
			}
			if !sameFiles(dir, want) {
				t.Fatal("files that were just written differ, want them to be the same")
			}
			if err := change(dir, want); err != nil {
				t.Fatal(err)
			}
			if sameFiles(dir, want) {
				t.Error("the changed files are the same, want them to differ")
			}
		})
	}
}

// replaced puts something else in the place of the file "empty".
func replaced(dir string, with func(path string) error) error {
	path := filepath.Join(dir, "empty")
	if err := os.Remove(path); err != nil {
		return err
	}
	return with(path)
}
