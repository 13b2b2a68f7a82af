package metamanager

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// followed are the tokens that FollowTokens has reported.
type followed struct {
	mu    sync.Mutex
	rows  map[string]bool // whether it has no audience
	calls int             // of stored
}

func (f *followed) stored(row string, request []byte, noAudience bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if strings.Contains(string(request), "boundObjectRef") {
		f.rows[row] = noAudience
	}
}

func (f *followed) removed(row string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.rows, row)
}

// count returns how many tokens there are, and how many of them have no audience.
func (f *followed) count() (all, noAudience int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, none := range f.rows {
		if none {
			noAudience++
		}
	}
	return len(f.rows), noAudience
}

// TestFollowTokens: those in the store are reported first, then those that come and go; a pod takes its tokens along.
func TestFollowTokens(t *testing.T) {
	e := newEdge(t, nil)
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.edged("insert", "default/serviceaccounttoken/default", tokenRequest(t, 3607, "u1")))
	f := &followed{rows: map[string]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.module.FollowTokens(ctx, f.stored, f.removed) }()
	defer func() {
		stop()
		if err := wait.Receive(t, "the end of FollowTokens", ended); err != nil {
			t.Error(err)
		}
	}()
	await := func(what string, all, noAudience int) {
		t.Helper()
		wait.True(t, what, func() bool {
			a, n := f.count()
			return a == all && n == noAudience
		})
	}
	await("the token that is there", 1, 1)
	e.ok(e.edged("insert", "default/serviceaccounttoken/default", tokenRequest(t, 3607, "u1", "vault")))
	e.ok(e.edged("insert", "default/serviceaccounttoken/default", tokenRequest(t, 3607, "u2")))
	await("two tokens that came", 3, 2)
	e.ok(e.cloud("delete", "default/pod/one", object("default", "one", "u1", "2")))
	await("the end of those of a pod", 1, 1)
	if f.calls != 3 {
		t.Errorf("stored was called %d times, want once for each of 3 tokens", f.calls)
	}
}
