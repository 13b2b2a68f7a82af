package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/testenv/wan"
)

const (
	// openStreams is how many streams are open when memory is measured: a node has at most 32 logs open.
	openStreams = 30
	// probes is how many messages of the link are timed, and probePause the time between two: edgecore sends the cloud
	// at most about 5 token reviews a second.
	probes     = 110
	probePause = 220 * time.Millisecond
)

// streamMemory measures cloudcore's memory for each open and idle stream, such as kubectl logs -f of a silent
// container.
func (s *tunnelSite) streamMemory(ctx context.Context) error {
	var open []io.Closer
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	follow := func() error {
		body, err := s.client.get(ctx, s.tunnel, logsPath+"?follow=true")
		if err == nil {
			open = append(open, body)
			_, err = io.ReadFull(body, make([]byte, 1))
		}
		return err
	}
	if err := follow(); err != nil { // which opens the tunnel
		return err
	}
	before, err := s.memoryNow(ctx)
	if err != nil {
		return err
	}
	for range openStreams {
		if err := follow(); err != nil {
			return err
		}
	}
	after, err := s.memoryNow(ctx)
	if err != nil {
		return err
	}
	per := func(before, after float64) string { return kilobytes((after - before) / openStreams) }
	s.t.row(fmt.Sprintf("cloudcore's memory for each of %d open streams: live objects and stacks", openStreams),
		per(before.heap+before.stacks, after.heap+after.stacks), "", "<= 100 KB")
	s.t.row("the same, resident; of so few it is rough", per(before.rss, after.rss), "", "")
	return nil
}

// linkBeside times messages of the link while a stream takes all bandwidth of the path, directly and through the
// tunnel. The path has 100 Mbit/s, a round trip of 50 ms and a queue of 50 ms.
func (s *tunnelSite) linkBeside(ctx context.Context) error {
	defer func() { _ = s.network.Cable(context.WithoutCancel(ctx)) }()
	for _, path := range []struct {
		name  string
		delay time.Duration
	}{{"on the LAN", 0}, {"over 100 Mbit/s, round trip 50 ms", 25 * time.Millisecond}} {
		if path.delay > 0 {
			err := s.network.Slow(ctx, wan.Quality{
				Delay: path.delay, BytesPerSecond: slowBandwidth, Queue: 50 * time.Millisecond,
			})
			if err != nil {
				return err
			}
		}
		quiet, err := s.probe(ctx)
		if err != nil {
			return err
		}
		direct, err := s.probeBeside(ctx, s.direct)
		if err != nil {
			return err
		}
		tunnel, err := s.probeBeside(ctx, s.tunnel)
		if err != nil {
			return err
		}
		p99 := func(list []time.Duration) time.Duration { return load.Percentile(list, 99) }
		s.t.row("question and answer over the link "+path.name+", p99 (median) with a stream through the tunnel",
			fmt.Sprintf("%s (%s)", millis(p99(tunnel)), millis(load.Median(tunnel))),
			fmt.Sprintf("%s (%s) at rest, %s (%s) with a direct stream", millis(p99(quiet)), millis(load.Median(quiet)),
				millis(p99(direct)), millis(load.Median(direct))), "<= 20 ms more")
	}
	return nil
}

// probeBeside runs probe while a file is read repeatedly.
func (s *tunnelSite) probeBeside(ctx context.Context, address string) ([]time.Duration, error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var reader sync.WaitGroup
	var failed error
	reader.Go(func() {
		for reading.Err() == nil {
			if _, err := s.cat(reading, address, bulkBytes); err != nil {
				if reading.Err() == nil {
					failed = err
				}
				return
			}
		}
	})
	list, err := s.probe(ctx)
	stop()
	reader.Wait()
	return list, errors.Join(err, failed)
}

// probe times messages of the link: each request to the kubelet API has a new token, which edgecore has the cloud
// review.
func (s *tunnelSite) probe(ctx context.Context) ([]time.Duration, error) {
	config := s.client.tls.Clone()
	config.Certificates = nil
	transport := &http.Transport{TLSClientConfig: config, DialContext: s.network.Dial}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var list []time.Duration
	for range probes {
		if err := wait(ctx, probePause); err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.direct+"/pods", nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+rand.Text())
		began := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		took := time.Since(began)
		_, err = io.Copy(io.Discard, resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusUnauthorized {
			return nil, fmt.Errorf("a request with an unknown token was answered with %s, want 401", resp.Status)
		}
		list = append(list, took)
	}
	return list, nil
}
