package stricttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// Kind is a kind of configuration.
type Kind[T any] struct {
	// Head is the beginning of each file.
	Head    string
	Load    func(path string) (*T, []string, error)
	Parse   func([]byte) (*T, []string, error)
	Default func() *T
	Minimal func() []byte
}

// TakesFiles checks that files of KubeEdge's users, in testdata, are taken as they are, with the warnings beside them.
// UPDATE_GOLDEN=1 writes the warnings again.
func (k Kind[T]) TakesFiles(t *testing.T, names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			_, warnings, err := k.Load(filepath.Join("testdata", name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".warnings")
			got := strings.Join(warnings, "\n") + "\n"
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
		})
	}
}

// DefaultIsAFile checks that the printed defaults say the same as an empty file.
func (k Kind[T]) DefaultIsAFile(t *testing.T) {
	data, err := yaml.Marshal(k.Default())
	if err != nil {
		t.Fatal(err)
	}
	fromFile, warnings, err := k.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(k.Default(), fromFile); diff != "" {
		t.Errorf("the printed defaults read back (-want +got):\n%s", diff)
	}
	for _, w := range warnings {
		if !strings.HasSuffix(w, ".enable: "+strict.NotThere) {
			t.Errorf("warning of a default = %q, want only those of modules that are not there", w)
		}
	}
	fromNothing, warnings, err := k.Parse([]byte(k.Head))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("err %v, warnings %v; want neither", err, warnings)
	}
	if diff := cmp.Diff(k.Default(), fromNothing); diff != "" {
		t.Errorf("a file that says nothing (-want +got):\n%s", diff)
	}
}

// MinimalIsAFile checks that the small file says the same as the defaults.
func (k Kind[T]) MinimalIsAFile(t *testing.T) {
	cfg, warnings, err := k.Parse(k.Minimal())
	if err != nil || len(warnings) > 0 {
		t.Fatalf("err %v, warnings %v; want neither", err, warnings)
	}
	if diff := cmp.Diff(k.Default(), cfg); diff != "" {
		t.Errorf("the small file says other than the defaults (-want +got):\n%s", diff)
	}
}

// Fuzz checks that no input brings Parse down, and that what it takes is valid and reads back the same once printed, as
// same sees it. It begins with the files in testdata, the small file, and texts.
func (k Kind[T]) Fuzz(f *testing.F, validate func(*T) error, same func(want, got *T) (diff string), texts ...string) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("Glob = %v, %v; want files", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(k.Minimal())
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, warnings, err := k.Parse(data)
		if err != nil {
			if err.Error() == "" || cfg != nil || warnings != nil {
				t.Fatalf("Parse = %v, %v, %q; want an error with a text, and nothing else", cfg, warnings, err)
			}
			return
		}
		if err := validate(cfg); err != nil {
			t.Fatalf("taken, and not valid: %v", err)
		}
		printed, err := yaml.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := k.Parse(printed)
		if err != nil {
			t.Fatalf("Parse of what was printed = %v, want no error\n%s", err, printed)
		}
		if diff := same(cfg, again); diff != "" {
			t.Fatalf("configuration read back from what was printed (-want +got):\n%s", diff)
		}
	})
}
