package metamanager

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metamanager/store"
)

// RememberConnected notes that the device is connected at a time. It writes once for each schema of the store: only
// the first connection counts. If the clock was set back since, the note is written again.
func RememberConnected(ctx context.Context, db *store.Store, now time.Time) {
	if since := ConnectedSince(ctx, db); db.Frozen() || !since.IsZero() && !since.After(now) {
		return
	}
	note := fmt.Sprintf("%d %s", store.SchemaVersion(), now.UTC().Format(time.RFC3339))
	if err := db.Apply(ctx, store.AgentSet(store.ConnectedNote, note)); err != nil {
		klog.ErrorS(err, "Time of the first connection not noted; copies of the store are kept for longer")
	}
}

// ConnectedSince returns when the device was first connected with this version's schema of the store; zero if it has
// not been yet. An agent of another schema in between has made it begin again.
func ConnectedSince(ctx context.Context, db *store.Store) time.Time {
	note, err := db.AgentValue(ctx, store.ConnectedNote)
	if err != nil {
		return time.Time{}
	}
	var schema int
	var text string
	if _, err := fmt.Sscanf(note, "%d %s", &schema, &text); err != nil || schema != store.SchemaVersion() {
		return time.Time{}
	}
	since, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return since
}
