package env

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestParseFile(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":        {},
		"A='1'":   {"A": "1"},
		"A='1'\n": {"A": "1"},
		"# comment\n\n  A = '1' \t\n\t#x='y'\nB='# no comment'\r\n": {"A": "1", "B": "# no comment"},
		"A='one\ntwo\n'\nB=''":          {"A": "one\ntwo\n", "B": ""},
		"A='$B \\n \"x\" ='\nA='later'": {"A": "later"},
		"a.b-c='$(X)'":                  {"a.b-c": "$(X)"},
	} {
		got, err := ParseFile([]byte(text))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got)\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"A=value": "line 1: the value of A is not in single quotes", "A=\"value\"": "line 1: the value of A is not in single quotes",
		"\nA='a''b'": "line 2: there is something after the value of A", "A='a'$B": "line 1: there is something after",
		"A='a' # no": "line 1: there is something after", "A='x\ny'\nB='z": "line 3: the value of B has no closing quote",
		"A": "line 1: want NAME='value'", "A\nB='1'": "line 1: want NAME='value'", "='x'": "line 1: the name of the variable", "A='\x00'": "zero byte",
	} {
		if got, err := ParseFile([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseFile(%q) = %v, %v; want %q", text, got, err, want)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add("A='1'\n# x\n\nB='2\n3'")
	f.Add(strings.Repeat("A=''\n", 10_000))
	f.Add(strings.Repeat("\n", 64<<10))
	f.Add(strings.Repeat("=", 64<<10))
	f.Add("A='" + strings.Repeat("\n", 64<<10) + "'")
	var names strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&names, "%d=''\n", i)
	}
	f.Add(names.String())
	f.Fuzz(func(t *testing.T, text string) {
		var values map[string]string
		var err error
		// The smallest variable has 5 bytes. Values are parts of the text; the map doubles while it grows.
		membound.Check(t, membound.Linear(len(text), 128), func() { values, err = ParseFile([]byte(text)) })
		for name, value := range values {
			if err != nil || name == "" || strings.ContainsAny(name, "=\n") || strings.ContainsAny(value, "'\x00") || !strings.Contains(text, "'"+value+"'") {
				t.Errorf("ParseFile(%q): %q=%q, %v; want a value of the text in quotes", text, name, value, err)
			}
		}
	})
}

func TestReadFile(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(outside, "secret"), []byte("S='1'"), 0o600))
	must(os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "sub", "env"), []byte("A='1'"), 0o600))
	must(os.Symlink("sub/env", filepath.Join(dir, "within")))
	must(os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "absolute")))
	must(os.Symlink("../"+filepath.Base(outside)+"/secret", filepath.Join(dir, "relative")))
	must(os.Symlink(outside, filepath.Join(dir, "folder")))
	must(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "large"), make([]byte, maxFile+1), 0o600))
	for _, path := range []string{"sub/env", "within"} {
		if data, err := ReadFile(dir, path); err != nil || string(data) != "A='1'" {
			t.Errorf("ReadFile(%s) = %q, %v; want A='1'", path, data, err)
		}
	}
	for _, path := range []string{"absolute", "relative", "folder/secret", "../" + filepath.Base(outside) + "/secret", "pipe", "large", "sub", ""} {
		if data, err := ReadFile(dir, path); err == nil || errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), dir) {
			t.Errorf("ReadFile(%q) = %q, %v; want an error that does not name the folder", path, data, err)
		}
	}
	if _, err := ReadFile(dir, "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadFile(none): %v, want it not to exist", err)
	}
}

func TestFileKey(t *testing.T) {
	f := facts()
	f.File = func(volume, path string) ([]byte, error) {
		switch volume + "/" + path {
		case "v/env":
			return []byte("A='1'\nB='$(X)'"), nil
		case "v/bad":
			return []byte("A=1"), nil
		}
		return nil, os.ErrNotExist
	}
	ref := func(path, key string, optional *bool) v1.EnvVar {
		return v1.EnvVar{Name: "V", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: path, Key: key, Optional: optional}}}
	}
	yes := ptr.To(true)
	for _, tc := range []struct {
		env  v1.EnvVar
		want []string
		err  string
	}{
		{ref("env", "A", nil), []string{"V=1"}, ""},
		{ref("env", "B", nil), []string{"V=$(X)"}, ""}, // taken as it is
		{ref("env", "C", nil), nil, `environment variable key "C" not found in file "env" of volume "v"`},
		{ref("env", "C", yes), nil, ""},
		{ref("none", "A", yes), nil, ""},
		{ref("none", "A", nil), nil, `environment variables of file "none" of volume "v": file does not exist`},
		{ref("bad", "A", yes), nil, `environment variables of file "bad" of volume "v": line 1: the value of A is not in single quotes`},
	} {
		vars, _, err := Make(t.Context(), testPod(), &v1.Container{Name: "app", Env: []v1.EnvVar{tc.env}}, f, store{})
		if (err != nil) != (tc.err != "") || err != nil && err.Error() != tc.err {
			t.Errorf("%v, want %q", err, tc.err)
		}
		if diff := cmp.Diff(tc.want, lines(vars)); diff != "" {
			t.Errorf("environment mismatch (-want +got):\n%s", diff)
		}
	}
}
