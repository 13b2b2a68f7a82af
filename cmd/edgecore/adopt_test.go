package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/deploy/systemd"
)

// TestAdoptRefuses: what can be checked without a device of KubeEdge is reported, and nothing is written.
func TestAdoptRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*adoptOptions)
		want   string
	}{
		"there is no KubeEdge": {func(*adoptOptions) {}, "no configuration of KubeEdge's edgecore"},
		"the plan alone": {func(o *adoptOptions) {
			o.dryRun = true
		}, "no configuration of KubeEdge's edgecore"},
		"there is nothing to undo": {func(o *adoptOptions) { o.undo = true }, "nothing to undo"},
		"both":                     {func(o *adoptOptions) { o.undo, o.dryRun = true, true }, "want one of the two"},
		"KubeEdge's own files": {
			func(o *adoptOptions) {
				if err := os.WriteFile(o.from,
					[]byte("apiVersion: edgecore.config.kubeedge.io/v1alpha2\nkind: EdgeCore\ndatabase: {dataSource: "+
						o.store+"}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}, "KubeEdge's own, which stay as they are",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "run"), 0o755); err != nil {
				t.Fatal(err)
			}
			o := &adoptOptions{
				globalOptions: &globalOptions{Config: filepath.Join(root, "ours.yaml")},
				from:          filepath.Join(root, "theirs.yaml"),
				store:         filepath.Join(root, "lib/ours.db"),
				root:          root,
				service: &systemd.Service{
					Root: root, Program: "/usr/bin/edgecore", Systemctl: func(context.Context, ...string) error {
						return errors.New("systemd is asked")
					},
				},
			}
			test.change(o)
			var out bytes.Buffer
			err := o.run(t.Context(), &out)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q\n%s", err, test.want, &out)
			}
			for _, made := range []string{o.Config, filepath.Dir(o.store)} {
				if _, err := os.Stat(made); err == nil {
					t.Errorf("Stat(%s) = nil, want it not made", made)
				}
			}
		})
	}
}
