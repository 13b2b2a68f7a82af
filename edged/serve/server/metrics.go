package server

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/health"
)

// Metrics are made when they are asked for: an idle node counts nothing.
type nodeCollector struct {
	node   Node
	name   string
	health *health.Registry

	nodeName, runningPods, runningContainers, podsByPhase, conditions, restarts *prometheus.Desc
}

// NewRegistry makes a registry with the metrics of the process and of the node, under the kubelet's names
// where it has them, and those of others. It logs which of these cannot be registered, and leaves them out.
func NewRegistry(
	nodeName string, node Node, h *health.Registry, others ...prometheus.Collector,
) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(),
		&nodeCollector{
			node:   node,
			health: h,
			name:   nodeName,
			nodeName: prometheus.NewDesc("kubelet_node_name", "1; the label is the node's name",
				[]string{"node"}, nil),
			runningPods: prometheus.NewDesc("kubelet_running_pods",
				"Number of pods that have a running container", nil, nil),
			runningContainers: prometheus.NewDesc("kubelet_running_containers", "Number of containers by state",
				[]string{"container_state"}, nil),
			podsByPhase: prometheus.NewDesc("edgecore_pods", "Number of pods by phase", []string{"phase"}, nil),
			restarts: prometheus.NewDesc("edgecore_container_restarts", "Restarts of the containers of a pod",
				[]string{"namespace", "pod"}, nil),
			conditions: prometheus.NewDesc("edgecore_condition", "Conditions of the agent that hold now",
				[]string{"code", "severity"}, nil),
		},
	)
	for _, c := range others {
		if err := r.Register(c); err != nil {
			klog.ErrorS(err, "Metrics left out")
		}
	}
	return r
}

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.nodeName, c.runningPods, c.runningContainers, c.podsByPhase, c.restarts,
		c.conditions} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	states := map[string]int{"running": 0, "waiting": 0, "exited": 0}
	phases := map[v1.PodPhase]int{v1.PodPending: 0, v1.PodRunning: 0, v1.PodSucceeded: 0, v1.PodFailed: 0}
	running := 0
	for _, pod := range c.node.Pods() {
		phases[pod.Status.Phase]++
		alive, restarts := false, 0
		for _, s := range pod.Status.ContainerStatuses {
			restarts += int(s.RestartCount)
			switch {
			case s.State.Running != nil:
				states["running"]++
				alive = true
			case s.State.Terminated != nil:
				states["exited"]++
			default:
				states["waiting"]++
			}
		}
		if alive {
			running++
		}
		gauge(c.restarts, restarts, pod.Namespace, pod.Name)
	}
	gauge(c.nodeName, 1, c.name)
	gauge(c.runningPods, running)
	for state, n := range states {
		gauge(c.runningContainers, n, state)
	}
	for phase, n := range phases {
		gauge(c.podsByPhase, n, string(phase))
	}
	byCode := map[health.Condition]int{}
	for _, cond := range c.health.Snapshot() {
		byCode[health.Condition{Code: cond.Code, Severity: cond.Severity}]++
	}
	for cond, n := range byCode {
		gauge(c.conditions, n, string(cond.Code), string(cond.Severity))
	}
}
