package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/edgecore-io/edgecore/test/testenv/cloud"
)

// addClouds starts further cloudcores, with the configuration of the first except for their ports and addresses. As in
// a cluster, each has an address of its own: at one address they would share the ports for nodes, and each would take
// the others' Nodes for its own.
func (s *fixture) addClouds(ctx context.Context, count int) error {
	for i := range count {
		opts := s.cloud.Options
		opts.Dir, opts.Address = filepath.Join(s.dir, fmt.Sprintf("cloud-%d", i+2)), fmt.Sprintf("127.0.0.%d", i+2)
		c, err := cloud.New(opts)
		if err != nil {
			return err
		}
		s.stops.add(c.Stop)
		if err := c.Start(ctx); err != nil {
			return err
		}
		s.more = append(s.more, c)
	}
	return nil
}

// clouds returns all cloudcores, the first one first.
func (s *fixture) clouds() []*cloud.Cloud { return append([]*cloud.Cloud{s.cloud}, s.more...) }

// hubs returns the addresses of all cloudcores' WebSockets.
func (s *fixture) hubs() []string {
	var list []string
	for _, c := range s.clouds() {
		list = append(list, hubPort(c))
	}
	return list
}

// restartClouds kills all cloudcores, and starts them at the same time.
func (s *fixture) restartClouds(ctx context.Context) error {
	var err error
	for _, c := range s.clouds() {
		err = errors.Join(err, c.Kill9(ctx))
	}
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range s.clouds() {
		group.Go(func() error { return c.Start(ctx) })
	}
	return group.Wait()
}
