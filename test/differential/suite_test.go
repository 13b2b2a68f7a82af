package differential

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/conformance"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var (
	built    = programs.Flags()
	leftFlag = flag.String("left", "kubelet",
		"the agent that is right: kubelet, edgecore, edgecore:PATH or kubeedge:VERSION")
	rightFlag = flag.String("right", "edgecore", "the agent that is compared with it, likewise")
	attempts  = flag.Int("attempts", 3, "how often a case with differences is run")
	seedFlag  = flag.Uint64("seed", 1, "the seed of TestRandomPods")
	podsFlag  = flag.Int("pods", 300, "how many random pods TestRandomPods runs")
	printAll  = flag.Bool("print", false, "print all values of all cases, also the equal ones")
)

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// pair is a cluster with the two nodes that are compared.
type pair struct {
	cluster     *env.Cluster
	left, right *Side
	// summary is printed when the test has ended.
	summary *Summary
}

// supported are the feature gates of a kubelet for what edgecore has without a gate.
func supported() map[string]bool {
	return map[string]bool{
		"ClusterTrustBundle":           true,
		"ClusterTrustBundleProjection": true,
		"ContainerStopSignals":         true,
		"ImageVolumeWithDigest":        true,
	}
}

// startPair starts both nodes, a kubelet with feature gates. Their names have the same length, since a name's length
// can matter.
func startPair(t *testing.T, gates map[string]bool) *pair {
	t.Helper()
	c := env.StartCluster(t, built, env.ClusterOptions{Kube: kube.Options{
		ControllerManager: true,
		APIServerFlags:    conformance.APIServerFlags(),
	}})
	_, err := c.Kube.AddUser(nobody)
	env.Must(t, err)
	summary := &Summary{}
	t.Cleanup(func() { t.Logf("what was compared:\n%s", summary) })
	return &pair{
		summary: summary,
		cluster: c,
		left:    StartSide(t, c, *leftFlag, "differ-l", built.Edge, gates),
		right:   StartSide(t, c, *rightFlag, "differ-r", built.Edge, gates),
	}
}

// allCases are the cases of every file.
func allCases() []Case {
	return slices.Concat(
		basicCases(),
		statusCases(),
		volumeCases(),
		endingCases(),
		restartCases(),
		environmentCases(),
		resourceCases(),
		nodeCases(),
	)
}

// TestAPI compares the answers of the kubelet's API, and the Nodes.
func TestAPI(t *testing.T) {
	p := startPair(t, nil)
	for _, c := range apiCases() {
		t.Run(c.Name, func(t *testing.T) { p.compare(t, c) })
	}
}

// TestPods runs every case on both nodes and fails on each difference that is not listed. -run selects cases by name.
func TestPods(t *testing.T) {
	p := startPair(t, nil)
	t.Run("cases", func(t *testing.T) {
		for _, c := range allCases() {
			t.Run(c.Name, func(t *testing.T) {
				if !c.Alone { // those that are run first, one after the other
					t.Parallel()
				}
				p.compare(t, c)
			})
		}
	})
}

// compare runs a case until it shows no difference, or often enough.
func (p *pair) compare(t *testing.T, c Case) {
	t.Helper()
	var left, right []Trace
	defer func() { p.summary.Add(c, left, right, Known()) }()
	var found []Difference
	for run := range *attempts {
		l, r, err := c.Run(t.Context(), p.left, p.right)
		env.Must(t, err)
		left, right = append(left, l), append(right, r)
		if *printAll {
			t.Logf("run %d:\n%s", run+1, printTraces(l, r))
		}
		if found = Unlisted(c.Name, Compare(left, right), Known()); len(found) == 0 {
			return
		}
		t.Logf("attempt %d differs in %d paths, such as %s", run+1, len(found), found[0])
	}
	texts := make([]string, len(found))
	for i, d := range found {
		texts[i] = d.String()
	}
	t.Errorf("case %s: differences between %s (left) and %s (right) = %d, want none that is not listed:\n%s", c.Name,
		p.left.Kind, p.right.Kind, len(found), strings.Join(texts, "\n"))
}

func printTraces(l, r Trace) string {
	paths := maps.Clone(l)
	maps.Copy(paths, r)
	var out strings.Builder
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if slices.EqualFunc(l[path], r[path], alike) {
			fmt.Fprintf(&out, "%s = %s\n", path, show(l[path]))
		} else {
			fmt.Fprintln(&out, Difference{Path: path, Left: l[path], Right: r[path]})
		}
	}
	return out.String()
}
