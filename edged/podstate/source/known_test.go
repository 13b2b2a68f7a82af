package source

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestKnown: pods of manifests may be given the UIDs that they had, and keep them as long as the manifest says the
// same.
func TestKnown(t *testing.T) {
	dir := t.TempDir()
	write := func(image string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: main, image: " + image +
			"}]\n"
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var first, now types.UID
	calls := 0
	s := NewStatic(StaticOptions{
		Dir: dir, NodeName: "n",
		Known: func(pods []*v1.Pod) {
			for _, pod := range pods {
				if first == "" {
					first = pod.UID
				}
				if pod.UID == first {
					pod.UID = "of-before"
				}
			}
		},
		Pods:    func(pods []*v1.Pod) { calls, now = calls+1, pods[0].UID },
		Fault:   func(file string, err error) { t.Errorf("fault of %s: %v, want none", file, err) },
		Warning: func(file, text string) { t.Errorf("warning of %s: %s, want none", file, text) },
	})
	write("image:1")
	s.Scan()
	if now != "of-before" {
		t.Errorf("the UID is %s, want \"of-before\"", now)
	}
	write("image:1")
	s.Scan()
	if calls != 1 {
		t.Errorf("told %d times of the same, want 1", calls)
	}
	write("image:22")
	s.Scan()
	if now == "of-before" || now == first || calls != 2 {
		t.Errorf("another manifest has the UID %s, and %d calls; want one of its own, and 2", now, calls)
	}
}
