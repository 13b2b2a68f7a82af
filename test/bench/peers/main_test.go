package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// arguments are flags after those that name programs which are there.
func arguments(t *testing.T, more ...string) []string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	return append([]string{"--edgecore", program, "--cloudcore", program}, more...)
}

func parsed(t *testing.T, args []string) (options, error) {
	t.Helper()
	set := flag.NewFlagSet("peers", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return parse(set, args)
}

func TestParse(t *testing.T) {
	o, err := parsed(t, arguments(t))
	if err != nil || o.rounds != 5 || o.repeats != 1 || !slices.Equal(o.sizes, []int{30}) || len(o.parts) != 8 ||
		!o.nodes() {
		t.Errorf("without flags: %+v, %v; want the short mode of all parts", o, err)
	}
	o, err = parsed(t, arguments(t, "--mode", "long", "--rounds", "7", "--levels", "30,0,30", "--idle", "5s",
		"--parts", "idle"))
	if err != nil || o.rounds != 7 || o.repeats != 3 || !slices.Equal(o.levels, []int{0, 30}) ||
		o.idle != 5*time.Second || len(o.parts) != 1 || !o.parts[partIdle] {
		t.Errorf("with flags: %+v, %v; want the long mode with what the flags say", o, err)
	}
	if o, err = parsed(t, arguments(t, "--parts", "static,probes,restarts")); err != nil || o.nodes() {
		t.Errorf("parts without a cloud: nodes %v, %v; want none", o.nodes(), err)
	}
	for want, args := range map[string][]string{
		"the modes are long, short":                              {"--mode", "medium"},
		"the parts are static, probes, restarts, idle, ":         {"--parts", "idle,none"},
		"must be greater than 0":                                 {"--rounds", "-1"},
		`--sizes: "0" is not a number of pods from 1 to 250`:     {"--sizes", "10,0"},
		`--levels: "many" is not a number of pods from 0 to 250`: {"--levels", "many"},
		`"pods" is not a flag`:                                   {"pods"},
		"make build makes it":                                    {"--edgecore", "/does/not/exist"},
		"flag provided but not defined":                          {"--wrong"},
		`--levels: "251" is not a number of pods from 0 to 250`:  {"--levels", "251"},
		"--rounds, --repeats and --idle must be greater than 0":  {"--idle", "-1s"},
		`--sizes: "300" is not a number of pods from 1 to 250`:   {"--sizes", "300"},
		`--sizes: "30 " is not a number of pods from 1 to 250`:   {"--sizes", "30 ,10"},
		"--parts : the parts are static, probes, restarts, idle": {"--parts", ""},
		"--mode : the modes are long, short":                     {"--mode", ""},
		`--levels: "-5" is not a number of pods from 0 to 250`:   {"--levels", "-5"},
	} {
		if _, err := parsed(t, arguments(t, args...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", args, err, want)
		}
	}
}

func TestLevelsFor(t *testing.T) {
	for size, want := range map[int][]int{
		1: {1}, 10: {4, 8, 10}, 20: {4, 8, 16, 20}, 30: {4, 8, 16, 30}, 60: {4, 8, 16, 30},
	} {
		if got := levelsFor(size); !slices.Equal(got, want) {
			t.Errorf("levelsFor(%d) = %v, want %v", size, got, want)
		}
	}
}

// TestPod: all kinds are bound to their node, with the same grace; one has no token, and one has volumes, all of which
// are mounted.
func TestPod(t *testing.T) {
	for k, want := range map[kind]*bool{withToken: nil, withoutToken: new(false), withVolumes: nil} {
		p := pod("name", "group", "node", k)
		got := p.Spec.AutomountServiceAccountToken
		if p.Spec.NodeName != "node" || *p.Spec.TerminationGracePeriodSeconds != 2 ||
			p.Spec.Containers[0].ImagePullPolicy != v1.PullIfNotPresent || (got == nil) != (want == nil) ||
			got != nil && *got != *want {
			t.Errorf("pod of kind %d is %+v, want it bound to node, with a grace of 2 s, automount %v", k, p.Spec, want)
		}
		var volumes, mounts []string
		for _, v := range p.Spec.Volumes {
			volumes = append(volumes, v.Name)
		}
		for _, m := range p.Spec.Containers[0].VolumeMounts {
			mounts = append(mounts, m.Name)
		}
		if (len(volumes) == 3) != (k == withVolumes) || !slices.Equal(mounts, volumes) {
			t.Errorf("pod of kind %d has the volumes %v and mounts %v, want three, all mounted, if it is withVolumes",
				k, volumes, mounts)
		}
	}
}
