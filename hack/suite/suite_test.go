package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// root is the project's folder.
var root = filepath.Join("..", "..")

// tests returns the names of the top-level tests of a package.
func tests(t *testing.T, pkg string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).
			FindAllStringSubmatch(string(data), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// TestPlanFitsTheTree checks that every test, package and folder in the plan exists. Otherwise a renamed test would
// stop running unnoticed.
func TestPlanFitsTheTree(t *testing.T) {
	all := areas(options{})
	for pkg, name := range integration {
		if len(tests(t, pkg)) == 0 {
			t.Errorf("integration suite %s has no tests, want some", pkg)
		}
		if !slices.ContainsFunc(all, func(x area) bool { return x.name == name }) {
			t.Errorf("integration suite %s is in area %q, want one of those of areas()", pkg, name)
		}
	}
	for _, p := range promises {
		name, _, _ := strings.Cut(p.test, "/")
		if names := tests(t, p.pkg); !slices.Contains(names, name) {
			t.Errorf("promise %q: %s has the tests %v, want %s", p.says, p.pkg, names, name)
		}
		if integration[p.pkg] == "" {
			t.Errorf("promise %q: %s is a unit package, want an integration suite", p.says, p.pkg)
		}
	}
	for _, name := range machines {
		if names := tests(t, "./test/vm"); !slices.Contains(names, name) {
			t.Errorf("test/vm has the tests %v, want %s", names, name)
		}
	}
	if !slices.ContainsFunc(all, func(a area) bool { return a.raced }) {
		t.Errorf("areas = %+v, want one that builds the programs with the race detector", all)
	}
	for _, a := range all {
		for _, folder := range a.folders {
			if _, err := os.Stat(filepath.Join(root, folder)); err != nil {
				t.Errorf("area %s: %v", a.name, err)
			}
		}
	}
}

// TestLongForms checks that an area runs the long form of each package that has one.
func TestLongForms(t *testing.T) {
	declare := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "suite_test.go" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if strings.Contains(string(data), `flag.Bool("long"`) {
			declare["./"+folder] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	planned := map[string]bool{}
	for pkg := range longForms {
		planned[pkg] = true
	}
	if diff := cmp.Diff(declare, planned); diff != "" {
		t.Errorf("packages in longForms, want those whose tests declare -long (-want +got):\n%s", diff)
	}
}

// TestDocumented checks that CONTRIBUTING.md names each area with the folders that it covers, and that the build tags
// of the Makefile are those of the programs under test.
func TestDocumented(t *testing.T) {
	contributing, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range areas(options{}) {
		row := ""
		for line := range strings.Lines(string(contributing)) {
			if strings.HasPrefix(line, "| `"+a.name+"` |") {
				row = line
			}
		}
		for _, folder := range a.folders {
			if !strings.Contains(row, "`"+folder+"`") {
				t.Errorf("CONTRIBUTING.md has for area %s the row %q, want it to name `%s`", a.name, row, folder)
			}
		}
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), ":= "+agent.Tags+"\n") {
		t.Errorf("the Makefile is without the build tags, want %q", ":= "+agent.Tags)
	}
}

// TestWayOfPod checks that the functions which CONTRIBUTING.md lists as a pod's way are in the files that it names, and
// that a hop is a package.
func TestWayOfPod(t *testing.T) {
	contributing, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| (\\d+) \\| `([\\w/]+\\.go)` \\| `(\\w+)` \\|")
	hops := row.FindAllStringSubmatch(string(contributing), -1)
	if len(hops) < 20 {
		t.Errorf("CONTRIBUTING.md lists %d functions of a pod's way, want 20 or more", len(hops))
	}
	number, folder := 0, ""
	for _, hop := range hops {
		file, function := hop[2], hop[3]
		if path.Dir(file) != folder {
			number, folder = number+1, path.Dir(file)
		}
		if hop[1] != strconv.Itoa(number) {
			t.Errorf("a pod's way: %s of %s is hop %s, want %d: each package is one", function, file, hop[1], number)
		}
		code, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Errorf("a pod's way: %v, want a file of this repository", err)
			continue
		}
		if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + function + `\(`).Match(code) {
			t.Errorf("a pod's way: %s has no function %s, want CONTRIBUTING.md to name what is there", file, function)
		}
	}
}

func TestUnits(t *testing.T) {
	got := units([]string{module + "/edged", module + "/test/link", module + "/test", module + "/test/testenv/wait"})
	if diff := cmp.Diff([]string{"./edged", "./test/testenv/wait"}, got); diff != "" {
		t.Errorf("units (-want +got):\n%s", diff)
	}
}

func TestPromiseJobs(t *testing.T) {
	got := promiseJobs([]promise{
		{"a", "./test/edge", "TestA", nil},
		{"b", "./test/kubectl", "TestKubectl/logs", nil},
		{"c", "./test/edge", "TestC", nil},
		{"d", "./test/edge", "TestA", nil},
		{"e", "./test/kubectl", "TestKubectl/one", []string{"exec", "cp"}},
		{"f", "./test/node", "TestNode", []string{"x"}},
	})
	var runs [][2]string
	for _, j := range got {
		runs = append(runs, [2]string{j.packages[0], j.run})
	}
	want := [][2]string{
		{"./test/edge", "^(TestA|TestC)$"},
		{"./test/kubectl", "^TestKubectl$/^logs$"},
		{"./test/kubectl", "^TestKubectl$/^one$/^(exec|cp)"},
		{"./test/node", "^(TestNode)$/^(x)"},
	}
	if diff := cmp.Diff(want, runs); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
}

func TestCommands(t *testing.T) {
	a := area{before: []string{"hack/setup vm"}, jobs: []job{{
		packages: []string{"./test/vm"},
		race:     true,
		run:      "TestA",
		skip:     "TestB",
		timeout:  time.Minute,
		args:     []string{"-cuts=3"},
	}}}
	want := []string{
		"hack/setup vm", "GORACE=atexit_sleep_ms=0 go test -count=1 -timeout=1m0s -race -run=TestA -skip=TestB " +
			"./test/vm -args -cuts=3",
	}
	if diff := cmp.Diff(want, a.commands()); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

const stream = `{"Action":"start","Package":"github.com/edgecore-io/edgecore/test/edge"}
{"Action":"run","Package":"github.com/edgecore-io/edgecore/test/edge","Test":"TestA"}
{"Action":"output","Package":"github.com/edgecore-io/edgecore/test/edge","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"github.com/edgecore-io/edgecore/test/edge","Test":"TestA","Elapsed":1.5}
{"Action":"output","Package":"github.com/edgecore-io/edgecore/test/edge","Test":"TestB/one","Output":"    b_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"github.com/edgecore-io/edgecore/test/edge","Test":"TestB/one","Elapsed":0}
{"Action":"fail","Package":"github.com/edgecore-io/edgecore/test/edge","Test":"TestB","Elapsed":0}
{"Action":"skip","Package":"github.com/edgecore-io/edgecore/test/edge","Test":"TestC","Elapsed":0}
not an event
{"Action":"fail","Package":"github.com/edgecore-io/edgecore/test/edge","Elapsed":2}
{"ImportPath":"github.com/edgecore-io/edgecore/pkg/x [github.com/edgecore-io/edgecore/pkg/x.test]","Action":"build-output","Output":"x.go:1: syntax error\n"}
{"Action":"output","Package":"github.com/edgecore-io/edgecore/pkg/x","Output":"FAIL\tpkg/x [build failed]\n"}
{"Action":"fail","Package":"github.com/edgecore-io/edgecore/pkg/x","Elapsed":0,"FailedBuild":"github.com/edgecore-io/edgecore/pkg/x [github.com/edgecore-io/edgecore/pkg/x.test]"}
{"Action":"output","Package":"github.com/edgecore-io/edgecore/pkg/y","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"output","Package":"github.com/edgecore-io/edgecore/pkg/y","Output":"FAIL\tpkg/y\n"}
{"Action":"fail","Package":"github.com/edgecore-io/edgecore/pkg/y","Elapsed":1}
`

func collected(t *testing.T) []outcome {
	t.Helper()
	c := &collector{}
	if err := read(strings.NewReader(stream), func(e event) { c.add(e) }); err != nil {
		t.Fatal(err)
	}
	return c.outcomes
}

func TestCollector(t *testing.T) {
	edge := module + "/test/edge"
	want := []outcome{
		{pkg: edge, test: "TestA", action: "pass", elapsed: 1500 * time.Millisecond},
		{pkg: edge, test: "TestB/one", action: "fail", output: "    b_test.go:7: got 1, want 2\n"},
		{pkg: edge, test: "TestB", action: "fail"},
		{pkg: edge, test: "TestC", action: "skip"},
		{
			pkg:     edge,
			action:  "fail",
			elapsed: 2 * time.Second,
			output:  "noise\n    b_test.go:7: got 1, want 2\n", // a race between tests, say, is of none of them
		},
		{pkg: module + "/pkg/x", action: "fail", output: "x.go:1: syntax error\n"},
		{pkg: module + "/pkg/y", action: "fail", elapsed: time.Second, output: "panic: test timed out\nFAIL\tpkg/y\n"},
	}
	if diff := cmp.Diff(want, collected(t), cmp.AllowUnexported(outcome{})); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestVerdict(t *testing.T) {
	passed := []outcome{{pkg: module + "/test/edge", test: "TestA", action: "pass"}}
	a := promise{"pods run", "./test/edge", "TestA", nil}
	b := promise{"pods rest", "./test/edge", "TestB", nil}
	other := promise{"pods run", "./test/link", "TestA", nil}
	rows := promise{"pods run", "./test/edge", "TestA", []string{"x"}}
	row := append(slices.Clone(passed), outcome{
		pkg:     module + "/test/edge",
		test:    "TestA/x",
		action:  "pass",
		elapsed: time.Second,
	})
	for name, c := range map[string]struct {
		area area
		jobs []jobResult
		want string // in the error; empty: none
	}{
		"all is well": {area{promises: []promise{a}}, []jobResult{{outcomes: passed}}, ""},
		"a test fails": {
			area{}, []jobResult{{outcomes: passed, err: errors.New("exit status 1")}}, "exit status 1",
		},
		"a promise is gone": {
			area{promises: []promise{a, b}}, []jobResult{{outcomes: passed}},
			"pods rest: ./test/edge TestB did not pass",
		},
		"of another package": {
			area{promises: []promise{other}}, []jobResult{{outcomes: passed}}, "./test/link TestA did not pass",
		},
		"a skip in short": {
			area{name: shortName}, []jobResult{{outcomes: append(passed, outcome{test: "TestC", action: "skip"})}},
			"1 tests were skipped",
		},
		"a row": {area{promises: []promise{rows}}, []jobResult{{outcomes: row}}, ""},
		"no row": {
			area{promises: []promise{rows}}, []jobResult{{outcomes: passed}}, "./test/edge TestA did not pass",
		},
		"nothing ran": {area{}, nil, "no test has passed"},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&result{jobs: c.jobs}).verdict(c.area)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("verdict() = %v, want %q", err, c.want)
			}
		})
	}
}

func TestReport(t *testing.T) {
	r := &result{jobs: []jobResult{{outcomes: collected(t)}}}
	got := r.report(area{
		name:     "edge",
		about:    "a node",
		promises: []promise{{"pods run", "./test/edge", "TestA", nil}, {"pods rest", "./test/edge", "TestB", nil}},
	}, time.Minute)
	want := `
==> edge: a node

 seconds  tests  package
     2.0      3  test/edge
     1.0      0  pkg/y
     0.0      0  pkg/x

 seconds  promise
     1.5  pods run (./test/edge TestA)
 MISSING  pods rest (./test/edge TestB)

edge took 1m0s
1 passed, 1 failed, 1 skipped
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}
