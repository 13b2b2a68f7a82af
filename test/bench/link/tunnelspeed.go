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

// way is a way to the kubelet API: an address, and the process that carries what connects there.
type way struct {
	address string
	carrier int
}

// ways returns the two ways of kubectl. Nothing carries the direct one; it counts cloudcore's other work.
func (s *tunnelSite) ways() (direct, tunnel way) {
	return way{s.direct, s.cloud.PID()}, way{s.tunnel, s.cloud.PID()}
}

// cost is what reading a file took.
type cost struct {
	took time.Duration
	// The processor time of what carries, of edgecore, of containerd with its shims, and of this program.
	carrier, edge, runtime, client time.Duration
	// waited is how long their threads waited for a processor.
	waited time.Duration
}

// cpu is the processor time so far.
func (s *tunnelSite) cpu(carrier int) (c cost, err error) {
	for pid, to := range map[int]*time.Duration{
		carrier: &c.carrier, s.edge.PID(): &c.edge, os.Getpid(): &c.client,
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
	sum := func(c cost) time.Duration { return c.carrier + c.edge + c.runtime + c.client + c.waited }
	return float64(sum(after)-sum(before)) / float64(took)
}

// cat reads the file.
func (s *tunnelSite) cat(ctx context.Context, w way, bytes int64) (cost, error) {
	before, err := s.cpu(w.carrier)
	if err != nil {
		return cost{}, err
	}
	n, took, err := s.client.exec(ctx, w.address, "head", "-c", strconv.FormatInt(bytes, 10), bulkFile)
	if err == nil && n != bytes {
		err = fmt.Errorf("exec at %s printed %d bytes, want %d", w.address, n, bytes)
	}
	if err != nil {
		return cost{}, err
	}
	after, err := s.cpu(w.carrier)
	return cost{
		took:    took,
		carrier: after.carrier - before.carrier,
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
		carrier: median(func(c cost) time.Duration { return c.carrier }),
		edge:    median(func(c cost) time.Duration { return c.edge }),
		runtime: median(func(c cost) time.Duration { return c.runtime }),
		client:  median(func(c cost) time.Duration { return c.client }),
	}
}

// inTurns reads bytes of the file in each way, in turns, and returns what each takes.
func (s *tunnelSite) inTurns(ctx context.Context, turns int, bytes int64, ways ...way) ([]cost, error) {
	lists := make([][]cost, len(ways))
	for turn := range turns {
		for i := range ways {
			if turn%2 == 1 { // forwards and backwards: what the machine does beside meets all
				i = len(ways) - 1 - i
			}
			c, err := s.cat(ctx, ways[i], bytes)
			if err != nil {
				return nil, err
			}
			lists[i] = append(lists[i], c)
		}
	}
	var all []cost
	for _, list := range lists {
		all = append(all, medians(list))
	}
	return all, nil
}

func megabytes(bytes int64, took time.Duration) string {
	return fmt.Sprintf("%.1f MB/s", float64(bytes)/1e6/took.Seconds())
}

// bulk times exec cat of the file over a path that is limited only by the processors. Small relays in the place of the
// tunnel are the floor of its processor time.
func (s *tunnelSite) bulk(ctx context.Context) error {
	if _, err := s.client.firstByte(ctx, s.tunnel); err != nil { // which opens the tunnel
		return err
	}
	straight, through := s.ways()
	ways := []way{straight, through}
	for _, kind := range relayKinds {
		address, p, err := s.startRelays(ctx, kind)
		if err != nil {
			return err
		}
		ways = append(ways, way{address, p.PID})
	}
	costs, err := s.inTurns(ctx, bulkTurns, bulkBytes, ways...)
	if err != nil {
		return err
	}
	direct, tunnel, relays := costs[0], costs[1], costs[2:]
	s.t.row(fmt.Sprintf("exec cat of %d MiB, median of %d", bulkBytes>>20, bulkTurns),
		fmt.Sprintf("%s (%.2f x)", megabytes(bulkBytes, tunnel.took), direct.took.Seconds()/tunnel.took.Seconds()),
		megabytes(bulkBytes, direct.took)+" directly", ">= 0.70 x")
	name := "processor time of 100 MB: "
	for i, kind := range relayKinds {
		ratio := tunnel.carrier.Seconds() / relays[i].carrier.Seconds()
		s.t.row(name+"cloudcore, compared with a small relay over "+kind,
			fmt.Sprintf("%s (%.2f x)", per100MB(tunnel.carrier), ratio),
			fmt.Sprintf("%s at %s", per100MB(relays[i].carrier), megabytes(bulkBytes, relays[i].took)), "")
	}
	s.t.row(name+"edgecore", per100MB(tunnel.edge), per100MB(direct.edge), "")
	s.t.row(name+"containerd and its shims", per100MB(tunnel.runtime), per100MB(direct.runtime), "")
	s.t.row(name+"the caller", per100MB(tunnel.client), per100MB(direct.client), "")
	return nil
}

// per100MB is the time for 100 MB of what bulkBytes took.
func per100MB(d time.Duration) string { return fmt.Sprintf("%.0f ms", d.Seconds()*1000*1e8/bulkBytes) }

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
		straight, through := s.ways()
		costs, err := s.inTurns(ctx, slowTurns, slowBytes, straight, through)
		if err != nil {
			return err
		}
		direct, tunnel := costs[0], costs[1]
		s.t.row(fmt.Sprintf("exec cat of %d MiB over 100 Mbit/s, round trip 50 ms, %g %% of packets lost",
			slowBytes>>20, 100*loss),
			fmt.Sprintf("%s (%.2f x)", megabytes(slowBytes, tunnel.took), direct.took.Seconds()/tunnel.took.Seconds()),
			megabytes(slowBytes, direct.took)+" directly", ">= 0.70 x")
	}
	return nil
}
