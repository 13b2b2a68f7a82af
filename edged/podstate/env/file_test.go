package env

import (
	"errors"
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

func TestFindInFile(t *testing.T) {
	for text, want := range map[string]string{
		"":               "",
		"A='1'":          "1",
		"A='1'\n":        "1",
		"  A='1' \t\r\n": "1",
		"# A='0'\n\n\t#x='y'\nB='2'\nA='# no comment'": "# no comment",
		"A='one\r\ntwo\n'":            "one\ntwo\n",
		"A='$B \\n \"x\" ='\nA='2'":   "$B \\n \"x\" =",
		"a.b-c='1'\n1='2'\nA='$(X)'":  "$(X)",
		"A='a' # comment":             "a",
		"A='a'# comment":              "a",
		"A='a'\nthe rest is not read": "a",
		"A= 'a'":                      "",
		"A= 'a'\nA='b'":               "",
		"A=\tvalue":                   "",
		"A=''":                        "",
		"B= nothing\nA='a'":           "a",
		"B='2'":                       "",
		"A='1'\n" + strings.Repeat("x", maxFileLine): "1",
	} {
		if got, err := FindInFile([]byte(text), "A"); got != want || err != nil {
			t.Errorf("FindInFile(%.80q, A) = %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"A=value":                        "line 1: the value of the variable is not in single quotes",
		"A=\"value\"":                    "line 1: the value of the variable is not in single quotes",
		"A=":                             "line 1: the value of the variable is not in single quotes",
		"\nA='a''b'":                     "line 2: there is something after the value",
		"A='a'$B":                        "line 1: there is something after the value",
		"A='a'\r#x":                      "line 1: there is something after the value",
		"B='x\ny'\nA='z":                 "line 3: the value of the variable has no closing quote",
		"A":                              "line 1: want NAME='value'",
		"# \nwords\nA='1'":               "line 2: want NAME='value'",
		"='x'":                           "line 1: want NAME='value'",
		"A ='x'":                         "line 1: there are blanks before the =",
		"A='\x00'":                       "line 1: the value of A has a zero byte",
		strings.Repeat("#", maxFileLine): "line 1 has 65536 bytes or more",
		"A='\n" + strings.Repeat("#", maxFileLine): "line 2 has 65536 bytes or more",
	} {
		if got, err := FindInFile([]byte(text), "A"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("FindInFile(%.80q, A) = %q, %v; want %q", text, got, err, want)
		}
	}
}

func FuzzFindInFile(f *testing.F) {
	f.Add("A='1'\n# x\n\nB='2\n3'", "B")
	f.Add(strings.Repeat("A=''\n", 10_000), "B")
	f.Add(strings.Repeat("\n", 64<<10), "A")
	f.Add(strings.Repeat("=", 64<<10), "A")
	f.Add("A='"+strings.Repeat("\n", 64<<10)+"'", "A")
	f.Fuzz(func(t *testing.T, text, name string) {
		var value string
		var err error
		// A value is a part of the text, and is built line by line.
		membound.Check(t, membound.Linear(len(text), 8), func() { value, err = FindInFile([]byte(text), name) })
		if err == nil && value != "" &&
			(strings.ContainsAny(value, "'\x00") || !strings.Contains(strings.ReplaceAll(text, "\r\n", "\n"),
				name+"='"+value+"'")) {
			t.Errorf("FindInFile(%q, %q) = %q, want a value of the text in quotes", text, name, value)
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
	for _, path := range []string{"absolute", "relative", "folder/secret", "../" + filepath.Base(outside) + "/secret",
		"pipe", "large", "sub", ""} {
		if data, err := ReadFile(dir, path); err == nil || errors.Is(err, os.ErrNotExist) ||
			strings.Contains(err.Error(), dir) {
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
		return v1.EnvVar{Name: "V", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{
			VolumeName: "v",
			Path:       path,
			Key:        key,
			Optional:   optional,
		}}}
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
		{
			ref("bad", "A", yes), nil,
			`environment variables of file "bad" of volume "v": line 1: the value of the variable is not in single quotes`,
		},
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
