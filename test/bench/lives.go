package main

import (
	"context"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/floor"
)

// lives are how long pods took to run, and to go.
type lives struct{ up, down []time.Duration }

func (l *lives) add(up, down time.Duration) { l.up, l.down = append(l.up, up), append(l.down, down) }

// floorLife is that of a pod of the bare CRI client, after a rest.
func floorLife(
	ctx context.Context, client *floor.Client, name string,
) (up time.Duration, down floor.Deletion, err error) {
	if err := rest(ctx); err != nil {
		return 0, down, err
	}
	began := time.Now()
	pod, err := client.Create(ctx, name)
	if err != nil {
		return 0, down, err
	}
	up = time.Since(began)
	down, err = client.Delete(ctx, pod, time.Second)
	return up, down, err
}

// rest lets the kernel and the runtime take apart what was deleted, which goes on when the calls have returned.
func rest(ctx context.Context) error {
	if !wait(ctx, 500*time.Millisecond) {
		return ctx.Err()
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
