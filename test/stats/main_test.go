// Package stats shows on a real containerd, whose disks are small, that the figures of the node are those of what its
// pods do.
package stats

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"strings"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const (
	mib = 1 << 20
	// nodeDisk is the size of the agent's file system, imageDisk that of containerd's.
	nodeDisk, imageDisk = 64 * mib, 256 * mib
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// node is a containerd and an edgecore, each on a small file system of its own.
type node struct{ *env.Node }

func newNode(t *testing.T) *node {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	mount(t, filepath.Join(disk, "containerd"), imageDisk) // goes with the containerd
	small := filepath.Join(t.TempDir(), "small")
	mount(t, small, nodeDisk)
	t.Cleanup(func() {
		if err := agent.Unmount(small); err != nil {
			t.Error(err)
		}
	})
	// What unmounts all below the agent's folder leaves the file system there, with the agent's log.
	dir := filepath.Join(small, "agent")
	env.Must(t, os.Mkdir(dir, 0o755))
	return &node{env.StartNode(t, built, env.NodeOptions{Runtime: testenv.Options{Root: disk},
		Agent: agent.Options{Dir: dir}})}
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

// pod writes the manifest of a pod with a container "main" that runs a shell script, and more YAML of the container and
// of the pod.
func (n *node) pod(name, script, container, spec string) {
	n.T.Helper()
	indent := func(text, by string) string { return strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by) }
	n.Manifest(name, fmt.Sprintf(`apiVersion: v1
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
}

// summary asks for the summary; its pods are by the names of their manifests.
func (n *node) summary(query string) (*statsapi.Summary, map[string]*statsapi.PodStats) {
	n.T.Helper()
	var out statsapi.Summary
	wait.Until(n.T, "the summary", func() error {
		text, err := n.Get(n.T.Context(), "/stats/summary"+query)
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
	n.T.Helper()
	text, err := n.Get(n.T.Context(), path)
	env.Must(n.T, err)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	out, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		n.T.Fatalf("%s: %v\n%s", path, err, text)
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
