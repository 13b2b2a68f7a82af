package stats

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// The series of /metrics/resource, which metrics-server and with it `kubectl top` and the autoscalers read.
var (
	nodeCPU    = counter("node_cpu_usage_seconds_total", "CPU time used on the node, in seconds")
	nodeMemory = gauge("node_memory_working_set_bytes", "Memory of the node that the kernel cannot easily take back")
	nodeSwap   = gauge("node_swap_usage_bytes", "Swap in use on the node")

	containerLabels = []string{"container", "namespace", "pod"}
	containerCPU    = counter("container_cpu_usage_seconds_total", "CPU time used by the container, in seconds",
		containerLabels...)
	containerMemory = gauge("container_memory_working_set_bytes",
		"Memory of the container that the kernel cannot easily take back", containerLabels...)
	containerSwap  = gauge("container_swap_usage_bytes", "Swap in use by the container", containerLabels...)
	containerLimit = gauge("container_swap_limit_bytes", "Limit of the container's swap", containerLabels...)
	containerStart = gauge("container_start_time_seconds", "When the container started, in seconds since 1970",
		containerLabels...)

	podNames  = []string{"namespace", "pod"}
	podCPU    = counter("pod_cpu_usage_seconds_total", "CPU time used by the pod, in seconds", podNames...)
	podMemory = gauge("pod_memory_working_set_bytes", "Memory of the pod that the kernel cannot easily take back",
		podNames...)
	podSwap = gauge("pod_swap_usage_bytes", "Swap in use by the pod", podNames...)

	resourceError = gauge("resource_scrape_error", "1 if figures could not be read, else 0")
)

// Resource collects what /metrics/resource tells.
func (s *Stats) Resource() prometheus.Collector { return &collector{s.collectResource} }

func (s *Stats) collectResource(ctx context.Context, ch chan<- prometheus.Metric) {
	n, err := s.sampleNode(ctx)
	var pods []*pod
	if err == nil {
		pods, err = s.samplePods(ctx)
	}
	failed := 0.0
	if err != nil {
		klog.V(2).InfoS("Metrics of resources left out", "err", err)
		failed = 1
	}
	resourceError.sendNow(ch, failed)
	if err != nil {
		return
	}
	nodeCPU.send(ch, n.at, seconds(n.cpu))
	nodeMemory.send(ch, n.at, whole(n.workingSet))
	nodeSwap.send(ch, n.at, whole(n.swap))
	for _, p := range uniqueByName(pods) {
		podCPU.send(ch, p.at, seconds(p.cpu), p.pod.Namespace, p.pod.Name)
		podMemory.send(ch, p.at, whole(p.workingSet), p.pod.Namespace, p.pod.Name)
		podSwap.send(ch, p.at, whole(p.swap), p.pod.Namespace, p.pod.Name)
		for i := range p.containers {
			c := &p.containers[i]
			labels := []string{c.name, p.pod.Namespace, p.pod.Name}
			containerCPU.send(ch, c.at, seconds(c.cpu), labels...)
			containerMemory.send(ch, c.at, whole(c.workingSet), labels...)
			containerSwap.send(ch, c.at, whole(c.swap), labels...)
			containerLimit.send(ch, c.at, whole(c.swapLimit), labels...)
			containerStart.sendNow(ch, float64(c.started.UnixNano())/1e9, labels...)
		}
	}
}
