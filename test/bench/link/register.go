package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

const (
	// profileWindow is how long each of the profiles of a registration is: early and late ones show what grows.
	profileWindow = 10 * time.Second
	// shares is into how many parts of equal size a registration is divided, to see whether the last takes longer.
	shares = 5
)

// apiServerFlags let kube-apiserver make profiles if there is a folder for them.
func apiServerFlags(o options) []string {
	if o.profiles == "" {
		return nil
	}
	return []string{"--profiling=true"}
}

// register connects all edges for the first time, and measures how long that takes: until all are registered, and
// until the first status of each is stored, too. A node that is registered has its lease renewed from then on, and
// reports its status at its next heartbeat, so with more nodes, more of that work is done before all are registered.
func (f *fleet) register(ctx context.Context) error {
	say("connecting and registering %d edges", f.n)
	var parts []string
	stage := func(what string, began time.Time, before used) (took, each time.Duration, err error) {
		took = time.Since(began)
		after, err := f.used()
		if err != nil {
			return 0, 0, err
		}
		cpu := after.since(before)
		each = (cpu.cloud + cpu.api + cpu.etcd + cpu.edges) / time.Duration(f.n)
		f.row("first connect, until all "+what, fmt.Sprintf("%s, CPU %s; of these programs %s for each node",
			seconds(took), cpu, millis(each)), "", "")
		return took, each, nil
	}
	return f.profileAll(ctx, fmt.Sprintf("register-%d", f.n), func() error {
		before, err := f.used()
		if err != nil {
			return err
		}
		began := time.Now()
		f.edges.Start(ctx)
		f.stops.add(func(context.Context) error { f.edges.Stop(); return nil })
		last, next := began, 1
		err = f.waitConnected(ctx, settleTime, func() {
			for ; next <= shares && f.edges.State().Registered >= f.n*next/shares; next++ {
				parts = append(parts, fmt.Sprintf("%.1f", time.Since(last).Seconds()))
				last = time.Now()
			}
		})
		if err != nil {
			return err
		}
		took, _, err := stage("are registered", began, before)
		if err != nil {
			return err
		}
		f.opts.keep.Times(results.CloudRegister, results.CloudCore, f.point(), took)
		f.row(fmt.Sprintf("first registration, seconds for each of %d parts of the nodes", shares),
			strings.Join(parts, ", "), "", "")
		err = until(ctx, "the first status of each edge is stored", settleTime, func() (bool, error) {
			return f.edges.State().Reported == f.n, nil
		})
		if err != nil {
			return err
		}
		_, each, err := stage("have reported a status", began, before)
		if err == nil {
			f.opts.keep.Times(results.CloudRegisterCPU, results.CloudCore, f.point(), each)
		}
		return err
	})
}

// profileAll does some work. If there is a folder for profiles, it keeps CPU profiles of cloudcore, kube-apiserver and
// this program over each window of it, and the API server's metrics before and after it.
func (f *fleet) profileAll(ctx context.Context, name string, work func() error) error {
	if f.opts.profiles == "" {
		return work()
	}
	metrics := func(when string) error {
		text, err := f.fromAPIServer(ctx, "/metrics")
		if err != nil {
			return fmt.Errorf("read the API server's metrics: %w", err)
		}
		return f.keepProfile(fmt.Sprintf("metrics-%s-%s.txt", name, when), text)
	}
	if err := metrics("before"); err != nil {
		return err
	}
	done := make(chan struct{})
	windows := make(chan error, 1)
	go func() { windows <- f.profileWindows(ctx, name, done) }()
	err := work()
	close(done)
	return errors.Join(err, <-windows, metrics("after"))
}

// profileWindows keeps profiles of one window after the other until work is done.
func (f *fleet) profileWindows(ctx context.Context, name string, done <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-done:
			return nil
		default:
		}
		if err := f.profileWindow(ctx, fmt.Sprintf("%s-%02d", name, i)); err != nil {
			return err
		}
	}
}

// profileWindow keeps the profiles of one window.
func (f *fleet) profileWindow(ctx context.Context, name string) error {
	path := fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", profileWindow.Seconds())
	var cloud, api error
	var wg sync.WaitGroup
	wg.Go(func() { cloud = f.profile(ctx, "cpu-"+name+"-cloudcore.pprof", path) })
	wg.Go(func() {
		var data []byte
		if data, api = f.fromAPIServer(ctx, path); api == nil {
			api = f.keepProfile("cpu-"+name+"-kube-apiserver.pprof", data)
		}
	})
	own := f.ownProfile(ctx, "cpu-"+name+"-edges.pprof")
	wg.Wait()
	return errors.Join(cloud, api, own)
}

// ownProfile keeps a CPU profile of this program over one window.
func (f *fleet) ownProfile(ctx context.Context, name string) error {
	file, err := os.Create(filepath.Join(f.opts.profiles, name))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return errors.Join(err, file.Close())
	}
	err = wait(ctx, profileWindow)
	pprof.StopCPUProfile()
	return errors.Join(err, file.Close())
}

// fromAPIServer reads a path of kube-apiserver.
func (f *fleet) fromAPIServer(ctx context.Context, path string) ([]byte, error) {
	url, query, _ := strings.Cut(path, "?")
	req := f.api.CoreV1().RESTClient().Verb(http.MethodGet).AbsPath(url)
	for pair := range strings.SplitSeq(query, "&") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			req = req.Param(key, value)
		}
	}
	return req.DoRaw(ctx)
}
