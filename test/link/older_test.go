package link

import (
	"database/sql"
	"errors"
	"testing"

	_ "github.com/mattn/go-sqlite3" // changes the store as a newer version would
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/metamanager"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testOlder: an agent that is older than its store, of which it can read nothing, keeps all containers while there is
// no link, with or without a copy from before the upgrade. Then the cloud sends everything, and the pod that was
// deleted meanwhile goes.
func testOlder(t *testing.T, shared *env.Cluster) {
	for name, withCopy := range map[string]bool{"copy": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEdge(t, shared.WithCloud(t), nil) // whose only node it is
			e.apply(confAndKey, e.full("stays"), e.full("deleted"))
			e.running("stays", "deleted")
			wait.Until(t, "all objects to be acknowledged", e.settled)
			stays, all := e.stays(), e.RunningContainers()
			e.cable.Set(proxy.Cut)
			env.Must(t, e.Kill9(t.Context()))
			e.newerStore(withCopy)
			e.delete("deleted", 1)
			env.Must(t, e.Start(t.Context()))
			e.Condition(health.StoreRolledBack, true)
			if withCopy {
				e.Until("the pods to be known", func(pods map[string]*v1.Pod) error {
					return env.Running("stays", "deleted")(pods)
				})
			}
			env.Must(t, e.Kill9(t.Context())) // it is known after a restart, too
			env.Must(t, e.Start(t.Context()))
			e.Condition(health.StoreRolledBack, true)
			e.unchanged(all, "two starts without a link")

			e.cable.Set(proxy.Passing)
			e.containersGone("deleted")
			e.Condition(health.StoreRolledBack, false)
			e.running("stays")
			e.unchanged(stays, "the cloud has sent everything")
			wait.Until(t, "the API server, the store and the runtime to agree", e.agree)
			e.connectionNoted(withCopy)
		})
	}
}

// newerStore makes the store one of which this version can read nothing.
func (e *edge) newerStore(withCopy bool) {
	t := e.T
	t.Helper()
	db, err := sql.Open("sqlite3", e.Store())
	env.Must(t, err)
	if withCopy {
		_, err := db.ExecContext(t.Context(), "VACUUM INTO ?", e.Store()+".before-99")
		env.Must(t, err)
	}
	_, err = db.ExecContext(t.Context(), "ALTER TABLE meta RENAME TO objects; ALTER TABLE outbox RENAME TO reports; "+
		"ALTER TABLE agent RENAME TO notes; PRAGMA user_version=99; PRAGMA application_id=0x45430063")
	env.Must(t, errors.Join(err, db.Close()))
}

// connectionNoted checks that the store says since when the device is connected if there is a copy that is kept for as
// long as that matters, and that nothing was written otherwise.
func (e *edge) connectionNoted(want bool) {
	t := e.T
	t.Helper()
	env.Must(t, e.Stop(t.Context()))
	db, recovery, err := store.Open(t.Context(), e.Store(), store.Options{})
	env.Must(t, err)
	since := metamanager.ConnectedSince(t.Context(), db)
	env.Must(t, db.Close())
	if recovery != nil || since.IsZero() == want {
		t.Errorf("recovery %v, connected since %v; want no recovery, and a time: %v", recovery, since, want)
	}
	env.Must(t, e.Start(t.Context()))
	wait.Until(t, "the edge to be settled", e.settled)
}
