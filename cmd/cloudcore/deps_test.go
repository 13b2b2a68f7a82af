package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestForbiddenImports: what belongs to the device or to tests must not come in unseen.
func TestForbiddenImports(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is built
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 {
		t.Fatalf("%d packages, want 100 or more", len(deps))
	}
	const ours = "github.com/edgecore-io/edgecore/"
	for _, dep := range deps {
		for _, bad := range []string{
			"k8s.io/kubernetes", "sigs.k8s.io/controller-runtime", "k8s.io/cri-api", "github.com/mattn/go-sqlite3",
			"github.com/opencontainers/cgroups",
			"k8s.io/client-go/kubernetes/fake", "go.uber.org/goleak", "testing", "runtime/cgo",
			ours + "test", ours + "edged", ours + "edgehub", ours + "metamanager",
		} {
			if dep == bad || strings.HasPrefix(dep, bad+"/") {
				t.Errorf("cloudcore imports %s, want none of %s", dep, bad)
			}
		}
	}
}
