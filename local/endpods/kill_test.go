package endpods

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
)

// groups are the cgroups of two pods, one of which cannot be killed if killErr is set.
type groups struct {
	killErr error
	removed []types.UID
}

func (g *groups) Pods() ([]types.UID, error) { return []types.UID{"mine", "theirs"}, nil }
func (g *groups) RemoveAll() error           { return errors.New("not asked for: there are pods of others") }
func (g *groups) RemovePod(uid types.UID) error {
	g.removed = append(g.removed, uid)
	return g.killErr
}

// TestEndKills: where the runtime is gone, pods are killed by their cgroups if asked for, and only the agent's own.
func TestEndKills(t *testing.T) {
	for name, c := range map[string]struct {
		kill         bool
		noCgroups    bool
		killErr      error
		removed      []types.UID
		says, errSay string
	}{
		"not asked for": {false, false, nil, nil, "", "edgecore end-pods --kill kills what it left running"},
		"killed":        {true, false, nil, []types.UID{"mine"}, "Killed the processes of 1 pods\n", ""},
		"does not end": {
			true, false, errors.New("1 processes do not end"), []types.UID{"mine"}, "Killed the processes of 0 pods\n",
			"kill pod mine: 1 processes",
		},
		"no pod cgroups": {true, true, nil, nil, "", "restart the device"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "root/pods/mine"), 0o755); err != nil {
				t.Fatal(err)
			}
			g := &groups{killErr: c.killErr}
			var out bytes.Buffer
			err := End(t.Context(), Options{
				RuntimeEndpoint: "unix://" + dir + "/gone.sock",
				RuntimeTimeout:  time.Minute,
				RootDir:         filepath.Join(dir, "root"),
				PodLogsDir:      filepath.Join(dir, "logs"),
				Links:           filepath.Join(dir, "links"),
				Within:          time.Minute,
				Kill:            c.kill,
				Cgroups:         g,
				OwnCgroups:      true,
				NoPodCgroups:    c.noCgroups,
				Out:             &out,
				Progress:        io.Discard,
			})
			if diff := cmp.Diff(c.removed, g.removed); diff != "" {
				t.Errorf("cgroups removed (-want +got):\n%s", diff)
			}
			if !strings.HasSuffix(out.String(), c.says) || (err == nil) != (c.errSay == "") ||
				err != nil && !strings.Contains(err.Error(), c.errSay) {
				t.Errorf("End says %q, %v; want %q, and an error with %q", out.String(), err, c.says, c.errSay)
			}
		})
	}
}
