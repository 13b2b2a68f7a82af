package configfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		files []string
		want  string
	}{
		"neither":               {nil, v1alpha2.DefaultConfigFile},
		"KubeEdge's":            {[]string{v1alpha2.DefaultConfigFile}, v1alpha2.DefaultConfigFile},
		"the package":           {[]string{PackagedTemplate, Packaged}, Packaged},
		"the package, no file":  {[]string{PackagedTemplate}, Packaged},
		"both":                  {[]string{v1alpha2.DefaultConfigFile, Packaged}, Packaged},
		"taken over by package": {[]string{v1alpha2.DefaultConfigFile, PackagedTemplate, Packaged}, Packaged},
	} {
		root := t.TempDir()
		for _, file := range tc.files {
			put(t, filepath.Join(root, file), "x")
		}
		if got := Default(root); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestFresh(t *testing.T) {
	root := t.TempDir()
	if got := Fresh(root, Packaged); got != nil {
		t.Errorf("Fresh without a package = %q, want nil", got)
	}
	put(t, filepath.Join(root, PackagedTemplate), "kind: EdgeCore\n")
	if got := Fresh(root, Packaged); string(got) != "kind: EdgeCore\n" {
		t.Errorf("Fresh with a package = %q, want %q", got, "kind: EdgeCore\n")
	}
	if got := Fresh(root, "/etc/other.yaml"); got != nil {
		t.Errorf("Fresh of another file = %q, want nil", got)
	}
}

// TestLoad: only a file that nobody had to name may be missing.
func TestLoad(t *testing.T) {
	if !Optional(Packaged) || !Optional(v1alpha2.DefaultConfigFile) || Optional("/etc/other.yaml") {
		t.Error("Optional is wrong, want only the two default files optional")
	}
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := Load(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("Load of a missing file = %v, want an error that names %s", err, missing)
	}
	file := filepath.Join(t.TempDir(), "edgecore.yaml")
	put(t, file, "apiVersion: "+v1alpha2.APIVersion+"\nkind: EdgeCore\nmodules: {edged: {hostnameOverride: edge1}}\n")
	cfg, err := Load(file)
	if err != nil || cfg.Modules.Edged.HostnameOverride != "edge1" {
		t.Errorf("Load = %v, %v; want hostnameOverride edge1", cfg, err)
	}
	for _, optional := range []string{Packaged, v1alpha2.DefaultConfigFile} {
		if _, err := os.Stat(optional); err == nil {
			continue // this machine has one
		}
		cfg, err := Load(optional)
		if diff := cmp.Diff(v1alpha2.Default(), cfg); err != nil || diff != "" {
			t.Errorf("Load(%s) without the file = %v, want the defaults (-want +got):\n%s", optional, err, diff)
		}
	}
}
