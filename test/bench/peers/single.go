package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/results"
)

// life is how long a pod took to run, and to be deleted.
type life struct{ up, gone time.Duration }

// single creates and deletes one pod after another, each subject in turn.
func (b *bench) single(ctx context.Context, k kind) error {
	created, deleted := results.CreateToken, results.DeleteToken
	switch k {
	case withToken:
	case withoutToken:
		created, deleted = results.CreatePlain, results.DeletePlain
	case withVolumes:
		created, deleted = results.CreateFull, results.DeleteFull
		if err := b.kube.Apply(ctx, volumeSources); err != nil {
			return err
		}
	}
	base, err := b.like(ctx, b.of(results.EdgeCore), k)
	if err != nil {
		return err
	}
	for round := range b.rounds + 1 {
		subjects := []string{results.Kubelet, results.EdgeCore, results.Floor}
		rand.Shuffle(len(subjects), func(i, j int) { subjects[i], subjects[j] = subjects[j], subjects[i] })
		say("%s, round %d of %d: %v", created, round, b.rounds, subjects)
		for _, subject := range subjects {
			if err := gap(ctx); err != nil {
				return err
			}
			var l life
			if subject == results.Floor {
				var deletion floor.Deletion
				l.up, deletion, err = floorLife(ctx, base, fmt.Sprintf("single-%d-%d", k, round))
				l.gone = deletion.Stopped
			} else {
				l, err = b.podLife(ctx, b.of(subject), k)
			}
			if err != nil {
				return err
			}
			if round > 0 { // the first warms things up
				b.keep.Times(created, subject, results.Point{}, l.up)
				b.keep.Times(deleted, subject, results.Point{}, l.gone)
			}
		}
	}
	return nil
}

func (b *bench) podLife(ctx context.Context, s *side, k kind) (l life, err error) {
	g, up, err := b.create(ctx, s, k, 1)
	if err != nil {
		return l, err
	}
	// Deleting a pod while its start is still being reported would measure another case.
	if err := gap(ctx); err != nil {
		return l, err
	}
	gone, err := g.remove(ctx)
	if err != nil {
		return l, err
	}
	return life{up[0], gone[0]}, g.removed(ctx, s)
}

func floorLife(
	ctx context.Context, client *floor.Client, name string,
) (up time.Duration, down floor.Deletion, err error) {
	began := time.Now()
	p, err := client.Create(ctx, name)
	if err != nil {
		return 0, down, err
	}
	up = time.Since(began)
	if err := gap(ctx); err != nil {
		return 0, down, err
	}
	down, err = client.Delete(ctx, p, grace)
	return up, down, err
}
