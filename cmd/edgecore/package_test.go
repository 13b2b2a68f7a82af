package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestHelpIsTheSameEverywhere: manual pages are made from it, on whichever machine.
func TestHelpIsTheSameEverywhere(t *testing.T) {
	out, _, err := execute(t, "--help")
	if err != nil || !strings.Contains(out, configfile.Packaged+" with the package, else "+v1alpha2.DefaultConfigFile) {
		t.Errorf("--help = %v, want both places of the configuration in it:\n%s", err, out)
	}
}

// TestPackageAfterJoin: a unit that an earlier join wrote goes when the package's does the same; KubeEdge's does not.
func TestPackageAfterJoin(t *testing.T) {
	d := newJoinDevice(t)
	d.service.Program = "/usr/bin/edgecore"
	put(t, d.service.UnitFile(), systemd.Unit("/usr/local/bin/edgecore", "/etc/kubeedge/config/edgecore.yaml"))
	put(t, filepath.Join(d.service.Root, "lib/systemd/system", systemd.Name),
		systemd.Unit("/usr/bin/edgecore", configfile.Packaged))
	did, err := d.service.Install(configfile.Packaged)
	if _, gone := os.Stat(d.service.UnitFile()); err != nil || !os.IsNotExist(gone) ||
		!strings.Contains(did, "is the package's") {
		t.Errorf("install = %q, %v, own unit: %v; want the package's unit used and the own one removed", did, err, gone)
	}
	put(t, d.service.UnitFile(), "[Service]\nExecStart=/usr/local/bin/edgecore\n")
	did, err = d.service.Install(configfile.Packaged)
	if err != nil || !strings.Contains(did, "the one before is") ||
		!strings.Contains(d.read(d.service.UnitFile()), "ExecStart=/usr/bin/edgecore --config "+configfile.Packaged+
			"\n") {
		t.Errorf("install = %q, %v, unit %q; want the one before kept and the unit for %s", did, err,
			d.read(d.service.UnitFile()), configfile.Packaged)
	}
}
