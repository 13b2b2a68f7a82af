package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// profile keeps a profile of cloudcore in the folder for them; it returns at once when there is none.
func (s *fixture) profile(ctx context.Context, name, path string) error {
	if s.opts.profiles == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(s.cloud.Monitor)+path,
		nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	if err != nil {
		return err
	}
	return s.keepProfile(name, data)
}

// keepProfile writes a profile into the folder for them.
func (s *fixture) keepProfile(name string, data []byte) error {
	if err := os.MkdirAll(s.opts.profiles, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.opts.profiles, name), data, 0o644)
}

// profiled does some work, and keeps a CPU profile of edgecore and one of cloudcore for a number of seconds from its
// begin, if there is a folder for profiles.
func (e *edgeSite) profiled(ctx context.Context, name string, seconds int, work func() error) error {
	if e.opts.profiles == "" {
		return work()
	}
	path := "/debug/pprof/profile?seconds=" + strconv.Itoa(seconds)
	kept := make(chan error, 2)
	go func() { kept <- e.profile(ctx, "cloudcore-"+name+".pprof", path) }()
	go func() { kept <- e.edgeProfile(ctx, "edgecore-"+name+".pprof", path) }()
	err := work()
	return errors.Join(err, <-kept, <-kept)
}

// keepAllocs keeps profiles of what edgecore and cloudcore have allocated since they started, if there is a folder for
// profiles. edgecore records allocations only if the environment has GODEBUG=memprofilerate=4096, or another rate.
func (e *edgeSite) keepAllocs(ctx context.Context) error {
	const path = "/debug/pprof/allocs"
	if err := e.profile(ctx, "cloudcore-allocs.pprof", path); err != nil || e.opts.profiles == "" ||
		!strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		return err
	}
	return e.edgeProfile(ctx, "edgecore-allocs.pprof", path)
}

// edgeProfile keeps a profile of edgecore, which its kubelet API makes.
func (e *edgeSite) edgeProfile(ctx context.Context, name, path string) error {
	client, err := newKubeletClient(e.kube.KubeletClientFiles())
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(e.edge.KubeletPort))
	body, err := client.get(ctx, address, path)
	if err != nil {
		return fmt.Errorf("get edgecore's profile: %w", err)
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("get edgecore's profile: %w", err)
	}
	return e.keepProfile(name, data)
}
