package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
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

// linkBeside times messages of the link while a stream runs, directly and through the tunnel. Controls are the same
// messages while unrelated processes keep the machine as busy as the stream does.
func (s *tunnelSite) linkBeside(ctx context.Context) error {
	threads, err := s.beside(ctx, "on the LAN")
	if err != nil {
		return err
	}
	for _, c := range controls {
		list, err := s.probeWhile(ctx, c.script(threads))
		if err != nil {
			return err
		}
		s.t.row(fmt.Sprintf("control: the same with no stream, and %d busy threads of unrelated processes %s", threads,
			c.name), percentiles(list), "", "")
	}
	return nil
}

// slowLinkBeside does so while the stream takes all bandwidth of a path of 100 Mbit/s with a round trip of 50 ms and a
// queue of 50 ms.
func (s *tunnelSite) slowLinkBeside(ctx context.Context) error {
	defer func() { _ = s.network.Cable(context.WithoutCancel(ctx)) }()
	err := s.network.Slow(ctx, wan.Quality{
		Delay: 25 * time.Millisecond, BytesPerSecond: slowBandwidth, Queue: 50 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	_, err = s.beside(ctx, "over 100 Mbit/s, round trip 50 ms")
	return err
}

// beside times messages without a stream, and beside each kind. It returns how many threads the stream through the
// tunnel keeps busy.
func (s *tunnelSite) beside(ctx context.Context, path string) (threads int, err error) {
	quiet, idle, err := s.probeBeside(ctx, "")
	if err != nil {
		return 0, err
	}
	direct, _, err := s.probeBeside(ctx, s.direct)
	if err != nil {
		return 0, err
	}
	tunnel, busy, err := s.probeBeside(ctx, s.tunnel)
	if err != nil {
		return 0, err
	}
	s.t.row("question and answer over the link "+path+", p99 (median) with a stream through the tunnel",
		percentiles(tunnel), percentiles(quiet)+" at rest, "+percentiles(direct)+" with a direct stream",
		"<= 20 ms more")
	return max(1, int(math.Round(busy-idle))), nil
}

// percentiles returns the 99th percentile and the median.
func percentiles(list []time.Duration) string {
	return fmt.Sprintf("%s (%s)", millis(load.Percentile(list, 99)), millis(load.Median(list)))
}

// probeBeside runs probe while a file is read repeatedly from an address, or at rest if that is empty. It returns how
// many threads of the programs involved ran or waited for a processor on average, too.
func (s *tunnelSite) probeBeside(ctx context.Context, address string) (list []time.Duration, busy float64, err error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	before, err := s.cpu(s.cloud.PID())
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	var reader sync.WaitGroup
	var failed error
	reader.Go(func() {
		for address != "" && reading.Err() == nil {
			if _, err := s.cat(reading, way{address, s.cloud.PID()}, bulkBytes); err != nil {
				if reading.Err() == nil {
					failed = err
				}
				return
			}
		}
	})
	list, err = s.probe(ctx)
	after, uncounted := s.cpu(s.cloud.PID())
	busy = threads(before, after, time.Since(began))
	stop()
	reader.Wait()
	if err = errors.Join(err, failed, uncounted); err != nil {
		return nil, 0, err
	}
	return list, busy, nil
}

// probe times messages of the link: each request to the kubelet API has a new token, which edgecore has the cloud
// review. The tokens are unknown, so that a request is one message: edgecore refuses it, and its log says so each time.
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
