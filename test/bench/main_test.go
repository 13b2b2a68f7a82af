package main

import (
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	good := options{binary: "bin/edgecore", idle: time.Minute, pods: 20, cuts: 5}
	for what, c := range map[string]struct {
		change func(*options)
		args   []string
		want   string // empty: it can be measured
	}{
		"all":      {},
		"one part": {change: func(o *options) { o.only = partFull }},
		"no part": {
			change: func(o *options) { o.only = "none" }, want: "the parts are full, probes, static, restarts",
		},
		"an argument": {args: []string{"full"}, want: `"full" is no flag`},
		"no pods":     {change: func(o *options) { o.pods = 0 }, want: "--pods 0"},
		"no cuts":     {change: func(o *options) { o.cuts = 0 }, want: "--cuts 0"},
		"no time":     {change: func(o *options) { o.idle = -time.Second }, want: "--idle -1s"},
	} {
		opts := good
		if c.change != nil {
			c.change(&opts)
		}
		got := ""
		if err := opts.check(c.args); err != nil {
			got = err.Error()
		}
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: check(%q) = %q, want %q", what, c.args, got, c.want)
		}
	}
}

// TestFullPod: what the pod mounts is there, and a floor that is to be like it has four volumes to copy.
func TestFullPod(t *testing.T) {
	pod := fullPod("full")
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s is mounted, want it among the volumes", m.Name)
		}
		delete(volumes, m.Name)
	}
	if len(pod.Spec.Volumes) != 4 || len(volumes) > 0 {
		t.Errorf("%d volumes, want 4; not mounted: %v, want none", len(pod.Spec.Volumes), volumes)
	}
}
