package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func TestDefaultConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		files []string
		want  string
	}{
		"neither":               {nil, v1alpha2.DefaultConfigFile},
		"KubeEdge's":            {[]string{v1alpha2.DefaultConfigFile}, v1alpha2.DefaultConfigFile},
		"the package":           {[]string{packagedTemplate, packagedConfig}, packagedConfig},
		"the package, no file":  {[]string{packagedTemplate}, packagedConfig},
		"both":                  {[]string{v1alpha2.DefaultConfigFile, packagedConfig}, packagedConfig},
		"taken over by package": {[]string{v1alpha2.DefaultConfigFile, packagedTemplate, packagedConfig}, packagedConfig},
	} {
		root := t.TempDir()
		for _, file := range tc.files {
			put(t, filepath.Join(root, file), "x")
		}
		if got := defaultConfig(root); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestHelpIsTheSameEverywhere: manual pages are made from it, on whichever machine.
func TestHelpIsTheSameEverywhere(t *testing.T) {
	out, _, err := execute(t, "--help")
	if err != nil || !strings.Contains(out, packagedConfig+" with the package, else "+v1alpha2.DefaultConfigFile) {
		t.Errorf("--help = %v, want both places of the configuration in it:\n%s", err, out)
	}
}

func TestFreshConfig(t *testing.T) {
	root := t.TempDir()
	if got := freshConfig(root, packagedConfig); got != nil {
		t.Errorf("freshConfig without a package = %q, want nil", got)
	}
	put(t, filepath.Join(root, packagedTemplate), "kind: EdgeCore\n")
	if got := freshConfig(root, packagedConfig); string(got) != "kind: EdgeCore\n" {
		t.Errorf("freshConfig with a package = %q, want %q", got, "kind: EdgeCore\n")
	}
	if got := freshConfig(root, "/etc/other.yaml"); got != nil {
		t.Errorf("freshConfig of another file = %q, want nil", got)
	}
}

// TestPackageAfterJoin: a unit that an earlier join wrote goes when the package's does the same; KubeEdge's does not.
func TestPackageAfterJoin(t *testing.T) {
	d := newJoinDevice(t)
	d.service.Program = "/usr/bin/edgecore"
	put(t, d.service.UnitFile(), systemd.Unit("/usr/local/bin/edgecore", "/etc/kubeedge/config/edgecore.yaml"))
	put(t, filepath.Join(d.service.Root, "lib/systemd/system", systemd.Name), systemd.Unit("/usr/bin/edgecore", packagedConfig))
	did, err := d.service.Install(packagedConfig)
	if _, gone := os.Stat(d.service.UnitFile()); err != nil || !os.IsNotExist(gone) || !strings.Contains(did, "is the package's") {
		t.Errorf("install = %q, %v, own unit: %v; want the package's unit used and the own one removed", did, err, gone)
	}
	put(t, d.service.UnitFile(), "[Service]\nExecStart=/usr/local/bin/edgecore\n")
	did, err = d.service.Install(packagedConfig)
	if err != nil || !strings.Contains(did, "the one before is") || !strings.Contains(d.read(d.service.UnitFile()), "ExecStart=/usr/bin/edgecore --config "+packagedConfig+"\n") {
		t.Errorf("install = %q, %v, unit %q; want the one before kept and the unit for %s", did, err,
			d.read(d.service.UnitFile()), packagedConfig)
	}
}
