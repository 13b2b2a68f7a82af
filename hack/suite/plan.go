package main

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	module    = "github.com/edgecore-io/edgecore"
	shortName = "short"
)

// options are those of the areas that take long.
type options struct {
	full bool
	seed int64
}

// area is a set of tests that one call runs.
type area struct {
	name, about string
	// folders are those of the code that the area covers, from the root of the project.
	folders []string
	// before are commands that prepare it, after those that belong to it and follow the tests; words are split at
	// spaces.
	before, after []string
	// raced builds edgecore and cloudcore with the race detector, whose reports the fixtures look for in their logs.
	// Not for the suites that measure memory.
	raced bool
	jobs  []job
	// promises must each be shown by a test that passes.
	promises []promise
}

// job is one `go test`.
type job struct {
	packages []string // relative to the root of the project: "./test/edge"
	run      string   // -run, "" for all
	skip     string   // -skip
	race     bool
	timeout  time.Duration
	args     []string // of the test binary
	env      []string // more of the environment, as NAME=VALUE
	alone    bool     // nothing else is tested meanwhile
}

// promise is a sentence of the documentation with the test of `make test` that shows it on real parts.
type promise struct {
	says string
	pkg  string
	test string   // a top-level test, or a subtest: "TestKubectl/containerd1"
	rows []string // how the names of those of its subtests begin that are run; nil for all
}

// integration are the suites that start real parts, each with the area that runs all of it. Every other package with
// tests is a unit package, which `make test` runs whole.
var integration = map[string]string{
	"./test":              "edge",
	"./test/adopt":        "edge",
	"./test/cloud":        "link",
	"./test/conformance":  "conformance",
	"./test/crilog":       "edge",
	"./test/csi":          "edge",
	"./test/differential": "kubelet",
	"./test/edge":         "edge",
	"./test/edgeapi":      "link",
	"./test/evict":        "edge",
	"./test/gc":           "edge",
	"./test/kubectl":      "link",
	"./test/kubeedge":     "kubeedge",
	"./test/kubeletapi":   "link",
	"./test/link":         "link",
	"./test/node":         "link",
	"./test/page":         "edge",
	"./test/pleg":         "edge",
	"./test/repair":       "edge",
	"./test/service":      "link",
	"./test/stats":        "edge",
	"./test/testenv":      "edge",
	"./test/testenv/kube": "link",
	"./test/testenv/nat":  "link",
	"./test/vm":           "vm",
	"./test/wire":         "link",
	"./hack/demo":         "link",
	"./hack/image":        "link",
	"./test/bench/soak":   "soak",
}

// longForms are the packages whose tests take -long: more random faults, kills and operations than `make test` has time
// for. Each is run with it in its area.
var longForms = map[string]string{
	"./cloud/cloudhub":               "link",
	"./cloud/cloudhub/queue":         "link",
	"./cloud/edgecontroller/desired": "link",
	"./devicetwin":                   "link",
	"./edged/containers/logrotate":   "edge",
	"./edged/containers/runtime":     "edge",
	"./edged/podstate/status":        "edge",
	"./edged/storage/volume":         "edge",
	"./edgehub":                      "link",
	"./hack/demo":                    "link",
	"./hack/image":                   "link",
	"./metamanager/store":            "edge",
	"./test/adopt":                   "edge",
	"./test/bench/soak":              "soak",
	"./test/cloud":                   "link",
	"./test/edgeapi":                 "link",
}

// suites returns a job for each package of an area, in alphabetical order, to run in parallel.
func suites(area string, common job) []job {
	var packages []string
	for pkg, a := range integration {
		if a == area {
			packages = append(packages, pkg)
		}
	}
	for pkg, a := range longForms {
		if a == area && integration[pkg] == "" {
			packages = append(packages, pkg)
		}
	}
	slices.Sort(packages)
	var out []job
	for _, pkg := range packages {
		j := common
		j.packages = []string{pkg}
		if longForms[pkg] != "" {
			j.args = append(slices.Clone(j.args), "-long")
		}
		out = append(out, j)
	}
	return out
}

// units returns the packages that are not integration suites, relative to the root.
func units(importPaths []string) []string {
	var out []string
	for _, p := range importPaths {
		pkg := "./" + strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
		if integration[strings.TrimSuffix(pkg, "/")] == "" {
			out = append(out, pkg)
		}
	}
	return out
}

// withArgs adds arguments to the job of one package.
func withArgs(jobs []job, pkg string, args ...string) []job {
	for i, j := range jobs {
		if slices.Equal(j.packages, []string{pkg}) {
			jobs[i].args = append(jobs[i].args, args...)
		}
	}
	return jobs
}

// alone makes the job of one package run with no other: test/evict counts the processes of the machine.
func alone(jobs []job, pkg string) []job {
	for i, j := range jobs {
		jobs[i].alone = jobs[i].alone || slices.Equal(j.packages, []string{pkg})
	}
	return jobs
}

// short returns what `make test` runs: all unit tests with the race detector, and a test for each promise.
func short(units []string) area {
	a := area{
		name:     shortName,
		about:    "all unit tests with the race detector, and each promise of the documentation on real parts",
		folders:  []string{"."},
		before:   []string{"hack/setup test", "go run ./hack/kube kubernetes kubelet"},
		promises: promises,
	}
	a.jobs = append(a.jobs, job{packages: units, race: true, timeout: 30 * time.Minute})
	a.jobs = append(a.jobs, promiseJobs(promises)...)
	return a
}

// promiseJobs returns a job for each package that shows promises. Tests that are subtests get a job of their own, since
// -run selects subtests of all the tests that it selects.
func promiseJobs(promises []promise) []job {
	var out []job
	tests, rows := map[string][]string{}, map[string][]string{}
	var order []string
	for _, p := range promises {
		key := p.pkg
		if p.subtests() {
			key += " " + p.test + " " + strings.Join(p.rows, "|")
		}
		if tests[key] == nil {
			order = append(order, key)
		}
		if !slices.Contains(tests[key], p.test) {
			tests[key] = append(tests[key], p.test)
		}
		rows[key] = p.rows
	}
	for _, key := range order {
		pkg, _, _ := strings.Cut(key, " ")
		run := pattern(tests[key])
		if len(rows[key]) > 0 {
			run += "/^(" + strings.Join(rows[key], "|") + ")"
		}
		out = append(out, job{packages: []string{pkg}, run: run, timeout: 15 * time.Minute})
	}
	return out
}

// subtests reports whether the promise needs some of the subtests of a test only.
func (p promise) subtests() bool { return strings.Contains(p.test, "/") || len(p.rows) > 0 }

// pattern returns the -run that selects some top-level tests, or one subtest.
func pattern(tests []string) string {
	if name, sub, ok := strings.Cut(tests[0], "/"); ok {
		parts := strings.Split(sub, "/")
		for i, p := range parts {
			parts[i] = "^" + p + "$"
		}
		return "^" + name + "$/" + strings.Join(parts, "/")
	}
	return "^(" + strings.Join(tests, "|") + ")$"
}

// areas returns the areas of `make test-all`.
func areas(o options) []area {
	seed := fmt.Sprintf("-seed=%d", o.seed)
	long := 60 * time.Minute
	vm := job{
		packages: []string{"./test/vm"},
		timeout:  40 * time.Minute,
		skip:     "^(" + strings.Join(machines, "|") + ")$",
		args:     []string{"-cuts=3", seed},
	}
	vmSetup := "hack/setup vm"
	if o.full {
		vm.timeout, vm.skip, vm.args = 6*time.Hour, "", []string{"-cuts=25", seed, "-raw-images"}
		vm.env = []string{"EDGECORE_TEST_FULL=1"}
		vmSetup = "hack/setup vm-arm64"
	}
	return []area{
		{
			name: "edge",
			about: "a node on its own: every promise of the agent on a real containerd, small disks, damaged " +
				"stores and images",
			folders: []string{"cmd/edgecore", "edged", "local", "eventbus", "metamanager", "beehive", "deploy/systemd"},
			before:  []string{"hack/setup test", "go run ./hack/kube kubernetes"},
			jobs: alone(withArgs(withArgs(suites("edge", job{race: true, timeout: long}), "./test/adopt", seed),
				"./test/edge", "-configs=1000", seed),
				"./test/evict"),
		},
		{
			name: "link",
			about: "a node in a cluster: join, link, cloudcore, kubectl, what goes over the wire, 1,000 random " +
				"faults, the demo",
			folders: []string{
				"cmd/cloudcore", "cloud", "edgehub", "pkg", "deploy/cloudcore", "edged/node/node", "edged/serve/server",
			},
			before: []string{
				"hack/setup test", "go run ./hack/kube kubernetes metrics-server prometheus", "make build",
			},
			raced: true,
			jobs:  withArgs(suites("link", job{race: true, timeout: long}), "./test/link", "-faults=1000", seed),
		},
		{
			name:  "conformance",
			about: "a pod for each field of docs/pod-support.md on both containerds, and pods at random",
			folders: []string{
				"edged/containers/runtime", "edged/podstate/status", "edged/pods/prober",
				"edged/storage/volume", "edged/podstate/env", "edged/containers/security",
			},
			before: []string{"hack/setup test", "go run ./hack/kube kubernetes gcepd"},
			jobs:   suites("conformance", job{timeout: long, args: []string{seed}}),
		},
		{
			name:    "kubelet",
			about:   "the same pods on a real kubelet and on edgecore: everything that can be seen of them is equal",
			folders: []string{"edged", "test/conformance"},
			before:  []string{"hack/setup test", "go run ./hack/kube kubernetes kubelet gcepd"},
			jobs:    suites("kubelet", job{timeout: long, args: []string{seed}}),
		},
		{
			name: "vm",
			about: "the Debian package on a booted machine: systemd, the kubelet's limits on cgroup v2, reboots, " +
				"power cuts",
			folders: []string{"deploy", "hack/release", "edged/containers/cgroups", "edged/pods/shutdown"},
			before:  []string{"hack/setup test", vmSetup, "go run ./hack/kube kubernetes kubelet"},
			jobs:    []job{vm},
		},
		{
			name: "safe",
			about: "wrong configurations, upgrades and downgrades, with kills, power cuts and a full disk, also on " +
				"booted machines: the agent runs, and its Node says why",
			folders: []string{
				"pkg/configfile", "pkg/configreload", "metamanager/store", "deploy/debian", "cmd/edgecore",
			},
			before: []string{"hack/setup test", "hack/setup vm", "go run ./hack/kube kubernetes"},
			raced:  true,
			jobs: []job{
				{
					packages: []string{"./test/link"},
					run:      "^TestLink$/^Safe$",
					race:     true,
					timeout:  long,
					args:     []string{"-wrong=0", seed},
				},
				{
					packages: []string{"./test/vm"},
					run:      "^(TestSafe|TestUpgradesCut)$",
					timeout:  4 * time.Hour,
					args:     []string{"-wrong=0", seed},
				},
			},
		},
		{
			name: "kubeedge",
			about: "KubeEdge's own edgecore and cloudcore, 1.12 and 1.23, with our halves; building them takes 30 " +
				"minutes once",
			folders: []string{"pkg/wire", "cloud/adopt", "cloud/cloudhub", "edgehub", "metamanager"},
			before:  []string{"hack/setup test", "go run ./hack/kube kubernetes"},
			jobs:    suites("kubeedge", job{timeout: 90 * time.Minute}),
		},
		{
			name:    "soak",
			about:   "2,000 pods come and go on one node, killed and restarted at random: nothing may grow",
			folders: []string{"edged/containers/gc", "edged/pods/podworker", "edged/containers/pleg"},
			before:  []string{"hack/setup test", "make build"},
			jobs:    suites("soak", job{race: true, timeout: long, args: []string{seed}}),
			after:   []string{fmt.Sprintf("go run ./test/bench/soak --binary bin/edgecore --seed %d", o.seed)},
		},
	}
}

// machines are the tests that boot a machine each and run with -full alone.
var machines = []string{
	"TestMachine", "TestDevice", "TestPackage", "TestSmallDevice", "TestClock", "TestShutdown", "TestJoin",
	"TestSuites",
	"TestPodsOnCgroup2", "TestCheckpoint", "TestAdopt", "TestARM64", "TestSafe", "TestUpgradesCut",
}

// parallel is the -parallel of suites whose subtests mostly wait. Other suites keep the default, the number of cores.
var parallel = map[string]int{"./test/conformance": 12, "./test/differential": 4}

// arguments are those of the go command for a job.
func (j job) arguments() []string {
	args := []string{"test", "-count=1", "-timeout=" + j.timeout.String()}
	if j.race {
		args = append(args, "-race")
	}
	if j.run != "" {
		args = append(args, "-run="+j.run)
	}
	if j.skip != "" {
		args = append(args, "-skip="+j.skip)
	}
	if n := parallel[j.packages[0]]; n > 0 {
		args = append(args, fmt.Sprintf("-parallel=%d", n))
	}
	args = append(args, j.packages...)
	if len(j.args) > 0 {
		args = append(append(args, "-args"), j.args...)
	}
	return args
}

// environment is what the job adds to its environment, as NAME=VALUE.
func (j job) environment() []string {
	if !j.race {
		return j.env
	}
	// Otherwise each test binary sleeps for a second before it exits.
	return append(slices.Clone(j.env), "GORACE=atexit_sleep_ms=0")
}

// command is the job as one would type it.
func (j job) command() string {
	return strings.Join(slices.Concat(j.environment(), []string{"go"}, j.arguments()), " ")
}

// display is the command as it is shown while tests run; -list prints all packages.
func (j job) display() string {
	if n := len(j.packages); n > 1 {
		j.packages = []string{j.packages[0], fmt.Sprintf("... (%d packages)", n)}
	}
	return j.command()
}

// name returns what a report calls the job.
func (j job) name() string {
	if len(j.packages) == 1 {
		return path.Clean(j.packages[0])
	}
	return fmt.Sprintf("%d packages", len(j.packages))
}

// commands returns all that the area runs, one command a line.
func (a area) commands() []string {
	out := slices.Clone(a.before)
	for _, j := range a.jobs {
		out = append(out, j.command())
	}
	return append(out, a.after...)
}
