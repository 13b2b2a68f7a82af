package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/endpods"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// groups are the cgroups of two pods, one of which cannot be killed if stuck is set.
type groups struct {
	stuck   error
	removed []types.UID
}

func (g *groups) Pods() ([]types.UID, error) { return []types.UID{"mine", "theirs"}, nil }
func (g *groups) RemoveAll() error           { return errors.New("not asked for: there are pods of others") }
func (g *groups) RemovePod(uid types.UID) error {
	g.removed = append(g.removed, uid)
	return g.stuck
}

// TestEndPodsKill: where the runtime is gone, pods are killed by their cgroups if asked for, and only the agent's own.
func TestEndPodsKill(t *testing.T) {
	for name, c := range map[string]struct {
		kill         bool
		perQOS       string
		stuck        error
		removed      []types.UID
		says, errSay string
	}{
		"not asked for": {false, "true", nil, nil, "", "edgecore end-pods --kill kills what it left running"},
		"killed":        {true, "true", nil, []types.UID{"mine"}, "Killed what ran of 1 pods\n", ""},
		"does not end": {
			true, "true", errors.New("1 processes do not end"), []types.UID{"mine"}, "Killed what ran of 0 pods\n",
			"kill pod mine: 1 processes",
		},
		"no pod cgroups": {true, "false", nil, nil, "", "restart the device"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "edgecore.yaml")
			text := "apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\ndatabase: {dataSource: " + dir +
				"/edgecore.db}\nmodules:\n  edged:\n" +
				"    rootDirectory: " + dir +
				"/root\n    tailoredKubeletConfig: {enforceNodeAllocatable: [none], cgroupsPerQOS: " + c.perQOS +
				", podLogsDir: " + dir + "/logs, containerRuntimeEndpoint: \"unix://" + dir + "/gone.sock\"}\n"
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "root/pods/mine"), 0o755),
				os.WriteFile(config, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			g := &groups{stuck: c.stuck}
			o := &endPodsOptions{
				globalOptions: &globalOptions{Config: config},
				within:        time.Minute,
				links:         filepath.Join(dir, "links"),
				kill:          c.kill,
				leftOvers:     filepath.Join(dir, "left"),
				groups:        func(*v1alpha2.Edged) endpods.Cgroups { return g },
			}
			var out bytes.Buffer
			err := o.run(t.Context(), &out, io.Discard)
			if diff := cmp.Diff(c.removed, g.removed); diff != "" {
				t.Errorf("cgroups removed (-want +got):\n%s", diff)
			}
			if !strings.HasSuffix(out.String(), c.says) || (err == nil) != (c.errSay == "") ||
				err != nil && !strings.Contains(err.Error(), c.errSay) {
				t.Errorf("end-pods says %q, %v; want %q, and an error with %q", out.String(), err, c.says, c.errSay)
			}
			if _, statErr := os.Stat(o.leftOvers); (statErr == nil) != (c.errSay == "") {
				t.Errorf("the list of what is left over: %v, want one only after pods have ended", statErr)
			}
		})
	}
}
