// Package stats shows on a real containerd, whose disks are small, that the figures of the node are those of what its pods do.
package stats

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"strings"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
)

// patience bounds every wait: these machines are shared.
const patience = 90 * time.Second

const (
	mib = 1 << 20
	// nodeDisk is the size of the agent's file system, imageDisk that of containerd's.
	nodeDisk, imageDisk = 64 * mib, 256 * mib
)

var binary struct {
	path string
	err  error
}

// TestMain builds the agent once for all tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "edgecore-test-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary.path, binary.err = agent.Build(context.Background(), dir)
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// node is a containerd and an edgecore, each on a small file system of its own.
type node struct {
	*agent.Agent
	t    *testing.T
	ctrd *containerd.Instance
}

func newNode(t *testing.T, opts testenv.Options) *node {
	t.Helper()
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	opts.Root = filepath.Join(t.TempDir(), "disk")
	mount(t, filepath.Join(opts.Root, "containerd"), imageDisk) // goes with the containerd
	dir := filepath.Join(t.TempDir(), "node")
	mount(t, dir, nodeDisk)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil && err != unix.EINVAL {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	ctrd := testenv.StartContainerd(t, opts)
	return &node{Agent: testenv.StartAgent(t, ctrd, agent.Options{Binary: binary.path, Dir: dir}), t: t, ctrd: ctrd}
}

func mount(t *testing.T, dir string, bytes int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Fatal(err)
	}
}

// pod writes the manifest of a pod with a container "main" that runs a shell script, and more YAML of the container and of the pod.
func (n *node) pod(name, script, container, spec string) {
	n.t.Helper()
	indent := func(text, by string) string { return strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by) }
	err := n.WriteManifest(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  %s
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, %q]
    %s
`, name, indent(spec, "  "), script, indent(container, "    ")))
	if err != nil {
		n.t.Fatal(err)
	}
}

// running waits until pods are ready.
func (n *node) running(names ...string) {
	n.t.Helper()
	n.until("pods run", func() error {
		pods, err := n.Pods(n.t.Context())
		if err != nil {
			return err
		}
		for _, name := range names {
			p := pods[name]
			if p == nil || !slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue }) {
				return fmt.Errorf("pod %s does not run: %+v", name, p)
			}
		}
		return nil
	})
}

func (n *node) until(what string, check func() error) {
	n.t.Helper()
	testenv.Poll(n.t, patience, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

// summary asks for the summary; its pods are by the names of their manifests.
func (n *node) summary(query string) (*statsapi.Summary, map[string]*statsapi.PodStats) {
	n.t.Helper()
	var out statsapi.Summary
	n.until("the summary", func() error {
		text, err := n.Get(n.t.Context(), "/stats/summary"+query)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(text), &out)
	})
	pods := map[string]*statsapi.PodStats{}
	for i := range out.Pods {
		pods[strings.TrimSuffix(out.Pods[i].PodRef.Name, "-"+n.NodeName)] = &out.Pods[i]
	}
	return &out, pods
}

// metrics asks for metrics and reads them as Prometheus does.
func (n *node) metrics(path string) map[string]*dto.MetricFamily {
	n.t.Helper()
	text, err := n.Get(n.t.Context(), path)
	if err != nil {
		n.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	out, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", path, err, text)
	}
	return out
}

// value is that of the one sample that has all these labels; ok is false where none has.
func value(f *dto.MetricFamily, labels map[string]string) (v float64, ok bool) {
	for _, m := range f.GetMetric() {
		has := map[string]string{}
		for _, l := range m.Label {
			has[l.GetName()] = l.GetValue()
		}
		match := true
		for name, want := range labels {
			match = match && has[name] == want
		}
		if match {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue(), true
		}
	}
	return 0, false
}
