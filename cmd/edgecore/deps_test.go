package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestForbiddenImports: what is too heavy for the device, or belongs to tests, must not come in unseen.
func TestForbiddenImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 {
		t.Fatalf("%d packages, want 100 or more", len(deps))
	}
	for _, dep := range deps {
		for _, bad := range []string{
			"k8s.io/client-go", "k8s.io/kubernetes", "github.com/google/cadvisor", "sigs.k8s.io/controller-runtime",
			"sigs.k8s.io/kustomize",
			"k8s.io/apimachinery/pkg/util/strategicpatch", "github.com/google/go-containerregistry",
			"go.uber.org/goleak", "testing",
			"github.com/edgecore-io/edgecore/test", "github.com/edgecore-io/edgecore/cloud",
		} {
			if dep == bad || strings.HasPrefix(dep, bad+"/") {
				t.Errorf("edgecore imports %s, want none of %s", dep, bad)
			}
		}
	}
}
