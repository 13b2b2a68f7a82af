package imagegc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "root", "images.keep")
	if list, err := ReadKeep(file); err != nil || list != nil {
		t.Errorf("ReadKeep without a file = %v, %v; want none", list, err)
	}
	if err := AddKeep(file, "example.com/a:1", "example.com/b:*"); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := AddKeep(file, "example.com/a:1"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("a list that does not change was written (%v), want the file of before", err)
	}
	if err := AddKeep(file, "example.com/c:1"); err != nil {
		t.Fatal(err)
	}
	if err := DropKeep(file, "example.com/a:1", "example.com/nothing"); err != nil {
		t.Fatal(err)
	}
	list, err := ReadKeep(file)
	if diff := cmp.Diff([]string{"example.com/b:*", "example.com/c:1"}, list); diff != "" || err != nil {
		t.Errorf("ReadKeep: %v; mismatch (-want +got):\n%s", err, diff)
	}
	if data, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(data), keepHead) {
		t.Errorf("the file has %s, %v; want it to begin with %s", data, err, keepHead)
	}
}

func TestParseKeep(t *testing.T) {
	list, err := parseKeep(strings.NewReader("# all of them\n\n  a:1  # why\nb/*\n"))
	if diff := cmp.Diff([]string{"a:1", "b/*"}, list); diff != "" || err != nil {
		t.Errorf("parseKeep: %v; mismatch (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"a b", "[", strings.Repeat("x", maxKeepFile+1)} {
		if _, err := parseKeep(strings.NewReader(bad)); err == nil {
			t.Errorf("parseKeep(%.20q) succeeded, want an error", bad)
		}
	}
}

func FuzzParseKeep(f *testing.F) {
	f.Add("a:1\n# b\nc/*")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseKeep(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, pattern := range list {
			Matches(pattern, "docker.io/library/nginx:1")
			if strings.ContainsAny(pattern, " \n#") {
				t.Errorf("pattern %q, want no space, line or comment in it", pattern)
			}
		}
	})
}
