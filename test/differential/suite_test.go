package differential

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/conformance"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var (
	built     = programs.Flags()
	leftFlag  = flag.String("left", "kubelet", "the agent that is right: kubelet, edgecore or edgecore:PATH")
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
	// alone is held by cases that stop an agent or a runtime, and shared by all others.
	alone *sync.RWMutex
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

// startPair starts both nodes, a kubelet with feature gates. Their names have the same length, since a name's length can
// matter.
func startPair(t *testing.T, gates map[string]bool) *pair {
	t.Helper()
	c := env.StartCluster(t, built, env.ClusterOptions{Kube: kube.Options{
		ControllerManager: true,
		APIServerFlags:    conformance.APIServerFlags(),
	}})
	_, err := c.Kube.AddUser(nobody)
	env.Must(t, err)
	return &pair{
		cluster: c,
		left:    StartSide(t, c, *leftFlag, "differ-l", built.Edge, gates),
		right:   StartSide(t, c, *rightFlag, "differ-r", built.Edge, gates),
		alone:   &sync.RWMutex{},
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

// TestConformance runs the pods of the conformance suite on both nodes.
func TestConformance(t *testing.T) {
	p := startPair(t, supported())
	t.Run("rows", func(t *testing.T) {
		for _, pod := range conformance.Pods() {
			t.Run(pod.Name, func(t *testing.T) {
				t.Parallel()
				p.compare(t, Case{
					Name:        pod.Name,
					Objects:     pod.Objects,
					Spec:        pod.Spec,
					Labels:      pod.Labels,
					Annotations: pod.Annotations,
					Steps:       []Step{Settled(), Inspect()},
				})
			})
		}
	})
}

// TestRandomPods runs pods that are made by chance, of three kinds in turn: steady pods run until they are deleted, and pods
// that end do so in a way that their spec decides; all that is seen of both is compared. The rest restart, fail and end at
// times of their own, so only what both nodes have of them is compared.
func TestRandomPods(t *testing.T) {
	p := startPair(t, supported())
	for _, s := range []*Side{p.left, p.right} {
		objects := strings.NewReplacer("@NODE@", s.Name, "@DIR@", s.Dir).Replace(conformance.RandomObjects)
		env.Must(t, p.cluster.Kube.ApplyIn(t.Context(), s.Name, objects))
	}
	t.Run("pods", func(t *testing.T) {
		for i := range *podsFlag {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				defer func() {
					if t.Failed() {
						t.Logf("this pod alone: -run 'TestRandomPods/pods/%d$' -pods %d -seed %d", i, i+1, *seedFlag)
					}
				}()
				p.compare(t, randomCase(i))
			})
		}
	})
}

// randomCase is a pod made by chance, which is the same for the same seed and number.
func randomCase(i int) Case {
	random := rand.New(rand.NewPCG(*seedFlag, uint64(i)))
	spec := conformance.RandomSpec(random, "@DIR@/@NAME@")
	if spec.DNSConfig != nil {
		spec.DNSConfig.Options = nil // a kubelet puts those of the pod and of the node into an order by chance
	}
	c := Case{
		Name:   fmt.Sprintf("random-%d", i),
		Pod:    &spec,
		Labels: map[string]string{"app": "random"},
		Steps:  []Step{Settled(), Inspect()},
	}
	switch i % 3 {
	case 0:
		steady(&spec, random)
	case 1:
		ending(&spec, random)
		c.Steps = []Step{Until("ended", ended)}
	default:
		c.Common = true
		c.Ignore = []string{`pod\..*`, `events/.*`, `logs/.*`, `cri/order/.*`, `cri/Stop.*`, `step/.*`}
	}
	return c
}

// steady changes a spec so that its containers run until they are stopped, with probes and hooks that succeed.
func steady(spec *v1.PodSpec, random *rand.Rand) {
	spec.ActiveDeadlineSeconds = nil
	eachContainer(spec, func(c *v1.Container) {
		c.Command = []string{"sh", "-c", forever}
		succeed := v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}
		for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if probe != nil {
				probe.ProbeHandler, probe.TimeoutSeconds, probe.FailureThreshold = succeed, 10, 10
			}
		}
		if c.Lifecycle != nil {
			hook := &v1.LifecycleHandler{Exec: succeed.Exec}
			c.Lifecycle.StopSignal = nil // see the row stop-signal of the conformance suite
			c.Lifecycle.PostStart, c.Lifecycle.PreStop = hook, nil
			if random.IntN(2) == 0 {
				c.Lifecycle.PreStop = hook
			}
		}
	})
	endInits(spec, "sleep 1")
}

// ending changes a spec so that its containers, but for sidecars, end once, each in a way of its own, after all of them were
// started.
func ending(spec *v1.PodSpec, random *rand.Rand) {
	scripts := []string{"sleep 3", "sleep 3; exit 3", "sleep 3; echo bye >/dev/termination-log; exit 1", "sleep 3; kill -9 $$"}
	spec.ActiveDeadlineSeconds = nil
	spec.RestartPolicy = v1.RestartPolicyNever
	eachContainer(spec, func(c *v1.Container) {
		c.Command = []string{"sh", "-c", scripts[random.IntN(len(scripts))]}
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		c.RestartPolicyRules = nil
	})
	for i := range spec.Containers {
		spec.Containers[i].RestartPolicy = nil
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil {
			c.Command = []string{"sh", "-c", forever}
		}
	}
	endInits(spec, []string{"true", "sleep 1", "exit 1"}[random.IntN(3)])
}

// ended returns an error while a container of a pod runs, or may still start.
func ended(pod *v1.Pod) error {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return nil
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return errors.New("it has no containers yet")
	}
	for _, c := range pod.Status.ContainerStatuses {
		w := c.State.Waiting
		if c.State.Terminated == nil && (w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing") {
			return fmt.Errorf("container %s has not ended", c.Name)
		}
	}
	return nil
}

// endInits has the init containers that are not sidecars run a script.
func endInits(spec *v1.PodSpec, script string) {
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy == nil {
			c.Command = []string{"sh", "-c", script}
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
}

func eachContainer(spec *v1.PodSpec, do func(*v1.Container)) {
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			do(&list[i])
		}
	}
}

// TestPods runs every case on both nodes and fails on each difference that is not listed. -run selects cases by name.
func TestPods(t *testing.T) {
	p := startPair(t, nil)
	t.Run("cases", func(t *testing.T) {
		for _, c := range allCases() {
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				p.compare(t, c)
			})
		}
	})
}

// compare runs a case until it shows no difference, or often enough.
func (p *pair) compare(t *testing.T, c Case) {
	t.Helper()
	if c.Alone {
		p.alone.Lock()
		defer p.alone.Unlock()
	} else {
		p.alone.RLock()
		defer p.alone.RUnlock()
	}
	var left, right []Trace
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
	}
	texts := make([]string, len(found))
	for i, d := range found {
		texts[i] = d.String()
	}
	t.Errorf("case %s: differences between %s (left) and %s (right) = %d, want none that is not listed:\n%s", c.Name, p.left.Kind, p.right.Kind, len(found), strings.Join(texts, "\n"))
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

// TestKnown: each difference that is allowed has its row in the documentation.
func TestKnown(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "differences.md"))
	env.Must(t, err)
	for _, a := range Known() {
		if a.Row == "" || !strings.Contains(string(page), "\n| "+a.Row+" |") {
			t.Errorf("difference %+v: row %q is not in docs/differences.md, want it there", a, a.Row)
		}
	}
}
