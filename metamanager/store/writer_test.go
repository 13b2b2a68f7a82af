package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mattn/go-sqlite3"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// countCommits counts the transactions that the writer commits from now on. One that changes nothing is not counted.
func countCommits(t testing.TB, s *Store) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	err := s.writer.conn.Raw(func(conn any) error {
		conn.(*sqlite3.SQLiteConn).RegisterCommitHook(func() int { n.Add(1); return 0 })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return &n
}

// TestGroupCommit: Applies that arrive while the writer is busy share one transaction, up to MaxBatch of them, and
// one that arrives alone waits for no other.
func TestGroupCommit(t *testing.T) {
	const maxBatch = 16
	for _, c := range []struct{ senders, commits int }{{1, 1}, {2, 1}, {maxBatch, 1}, {maxBatch + 1, 2}} {
		t.Run(fmt.Sprintf("senders=%d", c.senders), func(t *testing.T) {
			s, _, err := Open(t.Context(), filepath.Join(t.TempDir(), "edgecore.db"), Options{MaxBatch: maxBatch})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			commits := countCommits(t, s)
			for i := range 3 {
				apply(t, s, Upsert(meta("a/pod/held", fmt.Sprint(i))))
			}
			if got := commits.Load(); got != 3 {
				t.Fatalf("three Applies, one after another, took %d commits, want 3", got)
			}

			// The guard holds the writer in a transaction of one Apply until all others wait for the next.
			held, release := make(chan struct{}), make(chan struct{})
			var senders sync.WaitGroup
			send := func(op Op) {
				senders.Go(func() {
					if err := s.Apply(context.Background(), op); err != nil {
						t.Error(err)
					}
				})
			}
			send(UpsertIf(meta("a/pod/held", "last"), func([]byte) bool {
				close(held)
				<-release
				return true
			}))
			wait.Closed(t, "the writer to begin a transaction", held)
			for i := range c.senders {
				send(Upsert(meta(fmt.Sprintf("a/pod/p%d", i), "1")))
			}
			wait.True(t, "all senders to wait for the writer", func() bool {
				return len(s.jobs) == min(c.senders, maxBatch)
			})
			close(release)
			senders.Wait()
			if got, want := commits.Load(), int64(3+1+c.commits); got != want {
				t.Errorf("%d Applies that waited took %d commits, want %d", c.senders, got-4, c.commits)
			}
			if list, err := s.List(t.Context(), "pod"); err != nil || len(list) != 1+c.senders {
				t.Errorf("List returned %d pods, %v; want %d", len(list), err, 1+c.senders)
			}
		})
	}
}
