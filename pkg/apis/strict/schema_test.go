package strict

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// file is a small configuration with one key of each kind.
type file struct {
	Inlined `json:",inline"`
	Count   int32             `json:"count"`
	Large   int32             `json:"large"` // ten times count
	Secret  []string          `json:"secret"`
	Wait    metav1.Duration   `json:"wait"`
	Names   map[string]string `json:"names"`
	Part    *part             `json:"part"`
}

type Inlined struct {
	Kind string `json:"kind"`
}

type part struct {
	Enable bool    `json:"enable"`
	Share  float64 `json:"share"`
	Sizes  []size  `json:"sizes"`
}

type size struct {
	Bytes uint8 `json:"bytes"`
}

func sized(count int32) *file {
	return &file{Inlined: Inlined{"File"}, Count: count, Large: 10 * count, Names: map[string]string{"a": "b"}}
}

func small() *Schema[file] {
	return &Schema[file]{
		Program: "prog",
		Default: func() *file { return sized(1) },
		Prepare: func(root map[string]any) (Problems, error) {
			if root["kind"] != "File" {
				return nil, errors.New("no File")
			}
			if _, ok := root["old"]; ok {
				delete(root, "old")
				return Problems{{Path: "old", Text: NotActedOn}}, nil
			}
			return nil, nil
		},
		Validate: func(f *file) error {
			c := &Checker{Secrets: Secrets{Words: []string{"secret"}}}
			c.Within("count", int64(f.Count), 0, 9)
			c.OneOf("secret", strings.Join(f.Secret, ""), "")
			return c.Problems.OrNil()
		},
		Secrets:            Secrets{Words: []string{"secret"}},
		Live:               map[string]bool{"kind": true, "count": true, "secret": true},
		Absent:             map[string]bool{"part.enable": true},
		DeprecatedDefaults: map[string]string{"part.share": "0.5", "large": "7"},
		Notes:              map[string]string{"wait": "waits for nobody"},
	}
}

// TestSchema: what each field of a schema does.
func TestSchema(t *testing.T) {
	for name, tc := range map[string]struct {
		change    func(*Schema[file])
		text      string
		want      func(*file)
		warnings  []string
		errorText string
	}{
		"nothing said": {text: "kind: File\n", want: func(*file) {}},
		"live":         {text: "kind: File\ncount: 3\n", want: func(f *file) { f.Count = 3 }},
		"not acted on": {text: "kind: File\nlarge: 3\n", want: func(f *file) {
			f.Large = 3
		}, warnings: []string{"line 2: large: " + NotActedOn}},
		"a note": {text: "kind: File\nwait: 1s\n", want: func(f *file) {
			f.Wait.Duration = 1e9
		}, warnings: []string{"line 2: wait: waits for nobody"}},
		"a former default": {text: "kind: File\nlarge: 7\npart: {share: 0.5}\n", want: func(f *file) {
			f.Large, f.Part = 7, &part{Share: 0.5}
		}},
		"absent": {text: "kind: File\npart: {enable: true}\n", want: func(f *file) { f.Part = &part{Enable: true} },
			warnings: []string{"line 2: part.enable: " + NotThere}},
		"off": {text: "kind: File\npart: {enable: false}\n", want: func(f *file) { f.Part = &part{} }},
		"former": {
			text: "old: 1\nkind: File\n", want: func(*file) {}, warnings: []string{"line 1: old: " + NotActedOn},
		},
		"added to a map": {text: "kind: File\nnames: {c: d}\n", want: func(f *file) {
			f.Names = map[string]string{"a": "b", "c": "d"}
		},
			warnings: []string{"line 2: names: " + NotActedOn}},
		"adapted": {
			text: "kind: File\ncount: 4\nnames: {c: d}\n",
			change: func(s *Schema[file]) {
				s.Adapt = func(tree any, defaults *file) {
					if At(tree, "count") != nil {
						defaults.Large = 40
					}
					if Has(tree, "names") {
						defaults.Names = nil
					}
				}
			},
			want:     func(f *file) { f.Count, f.Large, f.Names = 4, 40, map[string]string{"c": "d"} },
			warnings: []string{"line 3: names: " + NotActedOn},
		},
		"completed": {text: "kind: File\n", change: func(s *Schema[file]) { s.Complete = func(f *file) { f.Large++ } },
			want: func(f *file) { f.Large = 11 }},
		"beside its own defaults": {text: "kind: File\ncount: 4\nlarge: 40\n", change: func(s *Schema[file]) {
			s.Fallback = func(f *file) *file { return sized(f.Count) }
		},
			want: func(f *file) { f.Count, f.Large = 4, 40 }},
		"another kind": {text: "kind: Other\n", errorText: "no File"},
		"a bad value":  {text: "kind: File\ncount: 10\n", errorText: "line 2: count: 10 is not allowed; want 0 to 9"},
		"a secret": {
			text: "kind: File\nsecret: [hunter2]\n", errorText: "line 2: secret: (hidden) is not allowed; want ",
		},
		"a public key with the word of a secret": {
			text: "kind: File\nsecret: [hunter2]\n",
			change: func(s *Schema[file]) {
				s.Secrets.Public = []string{"secret"}
				s.Validate = func(f *file) error {
					c := &Checker{Secrets: s.Secrets}
					c.Fail("secret", f.Secret[0], "another")
					return c.Problems.OrNil()
				}
			},
			errorText: `line 2: secret: "hunter2" is not allowed; want another`,
		},
		"a secret that does not fit": {text: "kind: File\nsecret: hunter2\n",
			errorText: "line 2: secret: (hidden) is not allowed; want a list"},
		"elsewhere": {
			text: "kind: File\nshare: 1\n", errorText: "line 2: share: no such key here; it belongs at part.share",
		},
		"a list's": {
			text:      "kind: File\npart:\n  sizes:\n  - bytes: 1\n  - bytes: 256\n",
			errorText: "line 5: part.sizes[1].bytes: 256 is not allowed; want a whole number from 0 to 255",
		},
		"no such share": {
			text:      "kind: File\npart: {share: x}\n",
			errorText: `line 2: part.share: "x" is not allowed; want a number, without quotes`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := small()
			if tc.change != nil {
				tc.change(s)
			}
			got, warnings, err := s.Parse([]byte(tc.text))
			if tc.errorText != "" {
				if err == nil || err.Error() != tc.errorText {
					t.Errorf("%v, want %s", err, tc.errorText)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := sized(1)
			tc.want(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	got := SortedKeys(small().Keys())
	want := []string{"count", "kind", "large", "names", "part", "part.enable", "part.share", "part.sizes", "secret",
		"wait"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSplitAndJoin(t *testing.T) {
	if diff := cmp.Diff([]string{"a", "b"}, Split(Join("a", "b"))); diff != "" {
		t.Errorf("schema mismatch (-want +got):\n%s", diff)
	}
	if got := Split(""); got != nil {
		t.Errorf("Split of nothing = %q, want nil", got)
	}
	if got := Join("", "a"); got != "a" {
		t.Errorf("Join of nothing and a = %q, want a", got)
	}
}

// TestLoadNamesTheFile: and the program that makes one.
func TestLoadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.yaml")
	if _, _, err := small().Load(path); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "`prog --minconfig > "+path+"`") {
		t.Errorf("Load of a missing file = %v, want %v and how to make one", err, os.ErrNotExist)
	}
	if err := os.WriteFile(path, []byte("kind: File\ncount: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := small().Load(path); err == nil ||
		!strings.HasPrefix(err.Error(), "configuration "+path+": line 2: count: ") {
		t.Errorf("Load of a wrong file = %v, want its name, line 2 and count", err)
	}
	if err := os.WriteFile(path, []byte("kind: File\ncount: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, warnings, err := small().Load(path); err != nil || warnings != nil || got.Count != 2 {
		t.Errorf("Load = %+v, %v, %v; want count 2", got, warnings, err)
	}
}
