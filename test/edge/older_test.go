package edge

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// TestNewerStore: after a downgrade the agent starts with the store of the newer version, whatever that has done to it,
// and no container is restarted. The agent is killed, as by a power cut.
func TestNewerStore(t *testing.T) {
	t.Parallel()
	const (
		usable   = "PRAGMA user_version=99; PRAGMA application_id=0x45430002"
		unusable = "PRAGMA user_version=99; PRAGMA application_id=0x45430063"
	)
	for name, c := range map[string]struct {
		change     string
		before     bool // there is a copy from before the upgrade
		rolledBack bool
		pods       []string // that the agent knows
	}{
		"compatible": {
			usable + "; ALTER TABLE meta ADD COLUMN size integer; CREATE TABLE later (x)", false, false,
			[]string{"api", "static"},
		},
		"incompatible": {unusable, false, true, []string{"api", "static"}},
		"pods are elsewhere": {
			unusable + "; ALTER TABLE meta RENAME TO objects", true, true, []string{"api", "static"},
		},
		"pods are elsewhere, no copy": {
			unusable + "; ALTER TABLE meta RENAME TO objects", false, true, []string{"static"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, env.NodeOptions{})
			p := cloudPod("api")
			p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].Env = nil, nil, nil
			n.Manifest("static", env.Pod("static", env.Forever))
			n.stored(func(s *store.Store) { n.put(s, "default/pod/api", p) })
			n.Running("api", "static")
			before := n.RunningContainers()
			n.kill()
			db, err := sql.Open("sqlite3", n.Store())
			env.Must(t, err)
			if c.before {
				_, err := db.ExecContext(t.Context(), "VACUUM INTO ?", n.Store()+".before-99")
				env.Must(t, err)
			}
			_, err = db.ExecContext(t.Context(), c.change)
			env.Must(t, err)
			env.Must(t, db.Close())
			for _, start := range []string{"the first start", "the second start"} {
				n.start()
				n.Running(c.pods...)
				n.Condition(health.StoreRolledBack, c.rolledBack)
				out, err := n.Run(t.Context(), "status")
				if err != nil || strings.Contains(out, "StoreRecovered") ||
					strings.Contains(out, ".newer-99-") != c.rolledBack {
					t.Errorf("%s: edgecore status: %v, want where the newer store is: %v\n%s",
						start, err, c.rolledBack, out)
				}
				n.same(before)
				n.kill()
			}
			n.start()
			n.Manifest("new", env.Pod("new", env.Forever))
			n.Running("new")
			n.untouched(before)
			env.Must(t, n.Stop(t.Context()))
			var version int
			env.Must(t, n.readStore().QueryRowContext(t.Context(), "PRAGMA user_version").Scan(&version))
			want := 99
			if c.rolledBack {
				want = store.SchemaVersion()
			}
			if version != want {
				t.Errorf("schema of the store afterwards = %d, want %d", version, want)
			}
			aside, err := filepath.Glob(n.Store() + ".newer-99-*Z")
			env.Must(t, err)
			if _, err := os.Stat(n.Store()); err != nil || (len(aside) == 1) != c.rolledBack {
				t.Errorf("set aside: %v, %v; want one file: %v", aside, err, c.rolledBack)
			}
			env.Must(t, n.Start(t.Context()))
			n.Running("new")
		})
	}
}
