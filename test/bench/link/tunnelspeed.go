package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/testenv/wan"
)

const (
	// coldTurns is how many requests open a tunnel, and warmTurns how many use an open one.
	coldTurns, warmTurns = 15, 60
	// coldPause is the least time between two tunnels that are opened.
	coldPause = 1100 * time.Millisecond
	// bulkTurns is how often a file is read each way.
	bulkTurns = 6
)

// firstByte times kubectl logs: directly, through a tunnel that is open, and through one that has to be opened.
func (s *tunnelSite) firstByte(ctx context.Context) error {
	var direct, warm, cold []time.Duration
	sample := func(list *[]time.Duration, address string) error {
		took, err := s.client.firstByte(ctx, address)
		*list = append(*list, took)
		return err
	}
	for range coldTurns {
		if err := s.endTunnel(ctx); err != nil {
			return err
		}
		if err := wait(ctx, coldPause); err != nil {
			return err
		}
		if err := sample(&cold, s.tunnel); err != nil {
			return err
		}
		for range warmTurns / coldTurns {
			if err := sample(&direct, s.direct); err != nil {
				return err
			}
			if err := sample(&warm, s.tunnel); err != nil {
				return err
			}
		}
	}
	floor := load.Median(direct)
	row := func(what string, list []time.Duration) {
		median := load.Median(list)
		s.t.row(fmt.Sprintf("first byte of kubectl logs on the LAN, tunnel %s, median of %d", what, len(list)),
			fmt.Sprintf("%s (%.2f x)", millis(median), float64(median)/float64(floor)), millis(floor)+" directly", "")
	}
	row("open", warm)
	row("opened for it", cold)
	return nil
}

// cost is what reading a file took.
type cost struct {
	took time.Duration
	// The processor time of cloudcore, of edgecore, of containerd with its shims, and of this program.
	cloud, edge, runtime, client time.Duration
	// waited is how long their threads waited for a processor.
	waited time.Duration
}

// cpu is the processor time so far.
func (s *tunnelSite) cpu() (c cost, err error) {
	for pid, to := range map[int]*time.Duration{
		s.cloud.PID(): &c.cloud, s.edge.PID(): &c.edge, os.Getpid(): &c.client,
	} {
		used, waited, err := process.Scheduled(pid)
		if err != nil {
			return c, err
		}
		*to = used
		c.waited += waited
	}
	pids, err := s.ctrd.PIDs()
	if err != nil {
		return c, err
	}
	for _, pid := range pids {
		used, waited, err := process.Scheduled(pid)
		if err == nil { // it has not just ended
			c.runtime += used
			c.waited += waited
		}
	}
	return c, nil
}

// threads returns how many threads have run or waited for a processor on average, from one cpu to another.
func threads(before, after cost, took time.Duration) float64 {
	sum := func(c cost) time.Duration { return c.cloud + c.edge + c.runtime + c.client + c.waited }
	return float64(sum(after)-sum(before)) / float64(took)
}

// cat reads the file.
func (s *tunnelSite) cat(ctx context.Context, address string, bytes int64) (cost, error) {
	before, err := s.cpu()
	if err != nil {
		return cost{}, err
	}
	n, took, err := s.client.exec(ctx, address, "head", "-c", strconv.FormatInt(bytes, 10), bulkFile)
	if err == nil && n != bytes {
		err = fmt.Errorf("exec at %s printed %d bytes, want %d", address, n, bytes)
	}
	if err != nil {
		return cost{}, err
	}
	after, err := s.cpu()
	return cost{
		took:    took,
		cloud:   after.cloud - before.cloud,
		edge:    after.edge - before.edge,
		runtime: after.runtime - before.runtime,
		client:  after.client - before.client,
	}, err
}

// medians returns the median of each field.
func medians(list []cost) cost {
	median := func(field func(cost) time.Duration) time.Duration {
		var all []time.Duration
		for _, c := range list {
			all = append(all, field(c))
		}
		return load.Median(all)
	}
	return cost{
		took:    median(func(c cost) time.Duration { return c.took }),
		cloud:   median(func(c cost) time.Duration { return c.cloud }),
		edge:    median(func(c cost) time.Duration { return c.edge }),
		runtime: median(func(c cost) time.Duration { return c.runtime }),
		client:  median(func(c cost) time.Duration { return c.client }),
	}
}

// inTurns reads bytes of the file directly and through the tunnel, in turns.
func (s *tunnelSite) inTurns(ctx context.Context, turns int, bytes int64) (direct, tunnel cost, err error) {
	var lists [2][]cost
	for i := range 2 * turns {
		way := (i + i/2) % 2 // 0 1 1 0 0 1 1 0: what the machine does beside meets both
		c, err := s.cat(ctx, [2]string{s.direct, s.tunnel}[way], bytes)
		if err != nil {
			return direct, tunnel, err
		}
		lists[way] = append(lists[way], c)
	}
	return medians(lists[0]), medians(lists[1]), nil
}

func megabytes(bytes int64, took time.Duration) string {
	return fmt.Sprintf("%.1f MB/s", float64(bytes)/1e6/took.Seconds())
}

// bulk times exec cat of the file over a path that is limited only by the processors.
func (s *tunnelSite) bulk(ctx context.Context) error {
	if _, err := s.client.firstByte(ctx, s.tunnel); err != nil { // which opens the tunnel
		return err
	}
	direct, tunnel, err := s.inTurns(ctx, bulkTurns, bulkBytes)
	if err != nil {
		return err
	}
	s.t.row(fmt.Sprintf("exec cat of %d MiB, median of %d", bulkBytes>>20, bulkTurns),
		fmt.Sprintf("%s (%.2f x)", megabytes(bulkBytes, tunnel.took), direct.took.Seconds()/tunnel.took.Seconds()),
		megabytes(bulkBytes, direct.took)+" directly", ">= 0.70 x")
	name := "processor time of 100 MB: "
	per := func(d time.Duration) string { return fmt.Sprintf("%.0f ms", d.Seconds()*1000*1e8/bulkBytes) }
	s.t.row(name+"cloudcore", per(tunnel.cloud), per(direct.cloud), "")
	s.t.row(name+"edgecore", per(tunnel.edge), per(direct.edge), "")
	s.t.row(name+"containerd and its shims", per(tunnel.runtime), per(direct.runtime), "")
	s.t.row(name+"the caller", per(tunnel.client), per(direct.client), "")
	return nil
}

const (
	// slowBytes is what is read over slow paths.
	slowBytes = 20 << 20
	slowTurns = 2
	// slowBandwidth is 100 Mbit/s.
	slowBandwidth = 100e6 / 8
)

// slow does the same over a path with a round trip of 50 ms and 100 Mbit/s, without and with losses.
func (s *tunnelSite) slow(ctx context.Context) error {
	defer func() { _ = s.network.Cable(context.WithoutCancel(ctx)) }()
	for _, loss := range []float64{0, 0.01} {
		err := s.network.Slow(ctx, wan.Quality{
			Delay: 25 * time.Millisecond, BytesPerSecond: slowBandwidth, Queue: 50 * time.Millisecond, Loss: loss,
		})
		if err != nil {
			return err
		}
		if _, err := s.client.firstByte(ctx, s.tunnel); err != nil {
			return err
		}
		direct, tunnel, err := s.inTurns(ctx, slowTurns, slowBytes)
		if err != nil {
			return err
		}
		s.t.row(fmt.Sprintf("exec cat of %d MiB over 100 Mbit/s, round trip 50 ms, %g %% of packets lost",
			slowBytes>>20, 100*loss),
			fmt.Sprintf("%s (%.2f x)", megabytes(slowBytes, tunnel.took), direct.took.Seconds()/tunnel.took.Seconds()),
			megabytes(slowBytes, direct.took)+" directly", ">= 0.70 x")
	}
	return nil
}
