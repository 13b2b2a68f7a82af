package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const ours = "github.com/edgecore-io/edgecore/"

var update = flag.Bool("update", false, "write the lists of dependencies")

// layers are what the packages of a folder may import of other folders, without tests: folders, or single packages.
// Commands, tests and hack may import everything.
var layers = map[string][]string{
	"beehive":     {"pkg/retry"},
	"pkg":         {"beehive/model"},
	"cloud":       {"beehive/model", "pkg", "deploy/cloudcore"},
	"deploy":      {"pkg/certs"},
	"eventbus":    {"pkg"},
	"mappers":     {"pkg"},
	"metamanager": {"beehive", "pkg"},
	// metaserver does not know how pods run, nor how requests travel to the cloud.
	"metaserver": {"beehive", "pkg"},
	"devicetwin": {"beehive/model", "eventbus", "metamanager/store", "pkg"},
	"edgehub":    {"beehive", "pkg"},
	// edged does not know how messages travel, nor how they are stored.
	"edged": {"beehive/model", "pkg"},
	// Commands on the device, which the running agent does not call: so nothing else imports them.
	"local": {"beehive/model", "deploy/systemd", "devicetwin", "edged", "edgehub", "metamanager/store",
		"metaserver", "pkg"},
}

// besides are imports of single packages: what options are made of, a check that two commands share, and a fake for
// tests.
var besides = map[string][]string{
	"edged/agentconfig":                {"devicetwin", "devicetwin/topics", "eventbus"},
	"edged/containers/runtime/fakecri": {"test/testenv/wait"},
	"edgehub/cloudprobe":               {"edged/node/preflight"},
}

// TestLayers checks that packages import only what their layer may, and that no exception is left over.
func TestLayers(t *testing.T) {
	used := map[string]bool{}
	for _, line := range goList(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		fields := strings.Fields(line)
		pkg, own := strings.CutPrefix(fields[0], ours)
		allowed, layered := layers[folder(pkg)]
		if !own || !layered {
			continue
		}
		for _, path := range fields[1:] {
			imported, own := strings.CutPrefix(path, ours)
			if !own || folder(imported) == folder(pkg) || within(imported, allowed) {
				continue
			}
			if slices.Contains(besides[pkg], imported) {
				used[pkg+" "+imported] = true
				continue
			}
			t.Errorf("%s imports %s, want of other folders only %q (hack/suite/layers_test.go)", pkg, imported,
				allowed)
		}
	}
	for pkg, imports := range besides {
		for _, imported := range imports {
			if !used[pkg+" "+imported] {
				t.Errorf("%s no longer imports %s: remove the exception", pkg, imported)
			}
		}
	}
}

// wings are the folders of edged, in order: a folder imports only from itself and from those before it. The package
// of a folder itself makes the folder's parts; only other packages that make parts import it.
var wings = []string{"podstate", "storage", "containers", "node", "pods", "serve"}

// TestWings checks that the packages of edged import only what their folder may.
func TestWings(t *testing.T) {
	seen := map[string]bool{}
	for _, line := range goList(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./edged/...") {
		fields := strings.Fields(line)
		wing := slices.Index(wings, folder(strings.TrimPrefix(fields[0], ours+"edged/")))
		if wing < 0 {
			continue
		}
		seen[wings[wing]] = true
		for _, path := range fields[1:] {
			imported, own := strings.CutPrefix(path, ours+"edged")
			if !own {
				continue
			}
			at := slices.Index(wings, folder(strings.TrimPrefix(imported, "/")))
			if at < 0 || at > wing {
				t.Errorf("%s imports %s, want of edged only %q (hack/suite/layers_test.go)", fields[0], path,
					wings[:wing+1])
			}
			if slices.Contains(wings, strings.TrimPrefix(imported, "/")) && fields[0] != ours+"edged/"+wings[wing] {
				t.Errorf("%s imports %s, which makes parts; want what it needs in its options", fields[0], path)
			}
		}
	}
	if len(seen) != len(wings) {
		t.Errorf("packages in %v, want some in each of %q", seen, wings)
	}
}

// folder returns the first part of a path.
func folder(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// within reports whether a package is one of those allowed, or below one.
func within(pkg string, allowed []string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return pkg == a || strings.HasPrefix(pkg, a+"/") })
}

// TestDependencies compares the packages of others that each program is made of with the committed list, so that none
// comes in unseen. `go test ./hack/suite -run TestDependencies -update` writes the lists.
func TestDependencies(t *testing.T) {
	for _, program := range []string{"cmd/edgecore", "cmd/cloudcore", "mappers/modbus"} {
		var got []string
		for _, path := range goList(t, "-deps", "-f", `{{if not .Standard}}{{.ImportPath}}{{end}}`, "./"+program) {
			if path != "" && !strings.HasPrefix(path, ours) {
				got = append(got, path)
			}
		}
		slices.Sort(got)
		file := filepath.Join(root, program, "testdata", "dependencies.txt")
		if *update {
			if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Fields(string(text)), got); diff != "" {
			t.Errorf("packages of %s mismatch (-committed +imported); to accept them: "+
				"go test ./hack/suite -run TestDependencies -update\n%s", program, diff)
		}
	}
}

// goList returns the lines of `go list` in the root of the module.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
