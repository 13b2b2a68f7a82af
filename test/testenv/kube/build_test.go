package kube

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A build that fails says what go says, and leaves no folder that the next one would take for complete.
func TestBuildFails(t *testing.T) {
	module, cache := t.TempDir(), t.TempDir()
	dir := filepath.Join(cache, "kube-0")
	for name, text := range map[string]string{
		"go.mod": "module example.com/broken\n\ngo 1.26.0\n\ntool " +
			"example.com/broken/server\n\nrequire k8s.io/kubernetes v1.36.3\n\nreplace k8s.io/kubernetes => " +
			"./kubernetes\n",
		"server/main.go":           "package main\n\nfunc main() { nothing() }\n",
		"kubernetes/go.mod":        "module k8s.io/kubernetes\n\ngo 1.26.0\n",
		"kubernetes/kubernetes.go": "package kubernetes\n",
	} {
		path := filepath.Join(module, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var output strings.Builder
	err := build(t.Context(), module, dir, &output)
	if err == nil || !strings.Contains(err.Error(), "undefined: nothing") {
		t.Errorf("error = %v, want the compiler's", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the binaries: %v, want that it is not there", err)
	}
}

func TestBuildKey(t *testing.T) {
	module := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	key := func() string {
		t.Helper()
		k, err := buildKey(module)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write("go.mod", "module a\n")
	if _, err := buildKey(module); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a go.sum: %v, want that it does not exist", err)
	}
	write("go.sum", "x v1\n")
	first := key()
	if again := key(); again != first {
		t.Errorf("key of the same module = %s, want %s", again, first)
	}
	write("go.sum", "x v2\n")
	if changed := key(); changed == first {
		t.Errorf("key of a changed module = %s, want another", changed)
	}
}

func TestRemoveOld(t *testing.T) {
	cache := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{
		"kube-0000000000000000": keepBinaries + time.Hour, "kube-1111111111111111": time.Hour,
		"containerd2-0000000000": 2 * keepBinaries,
	} {
		dir := filepath.Join(cache, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chtimes(dir, now, now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeOld(cache, now.Add(-keepBinaries)); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(cache, "containerd2-0000000000"), filepath.Join(cache, "kube-1111111111111111")}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}
