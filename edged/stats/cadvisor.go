package stats

import (
	"context"
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/cgroups"
)

// The main series of /metrics/cadvisor, under the labels that dashboards and rules select by: those of a whole pod have no container and
// no image, those of the node have the id "/".
var (
	cadvisorLabels = []string{"container", "id", "image", "name", "namespace", "pod"}
	with           = func(more string) []string { return append(append([]string(nil), cadvisorLabels...), more) }

	cCPU        = counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", with("cpu")...)
	cPeriods    = counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", cadvisorLabels...)
	cThrottled  = counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", cadvisorLabels...)
	cThrottleS  = counter("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", cadvisorLabels...)
	cWorkingSet = gauge("container_memory_working_set_bytes", "Current working set in bytes.", cadvisorLabels...)
	cMemory     = gauge("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", cadvisorLabels...)
	cRSS        = gauge("container_memory_rss", "Size of RSS in bytes.", cadvisorLabels...)
	cCache      = gauge("container_memory_cache", "Number of bytes of page cache memory.", cadvisorLabels...)
	cSwap       = gauge("container_memory_swap", "Container swap usage in bytes.", cadvisorLabels...)
	cFaults     = counter("container_memory_failures_total", "Cumulative count of memory allocation failures.", append(with("failure_type"), "scope")...)
	cOOM        = counter("container_oom_events_total", "Count of out of memory events observed for the container", cadvisorLabels...)
	cThreads    = gauge("container_threads", "Number of threads running inside the container", cadvisorLabels...)
	cLimit      = gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", cadvisorLabels...)
	cQuota      = gauge("container_spec_cpu_quota", "CPU quota of the container.", cadvisorLabels...)
	cPeriod     = gauge("container_spec_cpu_period", "CPU period of the container.", cadvisorLabels...)
	cStart      = gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", cadvisorLabels...)
	cSeen       = gauge("container_last_seen", "Last time a container was seen by the exporter", cadvisorLabels...)
	cFSReads    = counter("container_fs_reads_bytes_total", "Cumulative count of bytes read", with("device")...)
	cFSWrites   = counter("container_fs_writes_bytes_total", "Cumulative count of bytes written", with("device")...)

	cRx  = counter("container_network_receive_bytes_total", "Cumulative count of bytes received", with("interface")...)
	cRxP = counter("container_network_receive_packets_total", "Cumulative count of packets received", with("interface")...)
	cRxE = counter("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", with("interface")...)
	cRxD = counter("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", with("interface")...)
	cTx  = counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", with("interface")...)
	cTxP = counter("container_network_transmit_packets_total", "Cumulative count of packets transmitted", with("interface")...)
	cTxE = counter("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", with("interface")...)
	cTxD = counter("container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", with("interface")...)

	machineCores  = gauge("machine_cpu_cores", "Number of logical CPU cores.")
	machineMemory = gauge("machine_memory_bytes", "Amount of memory installed on the machine.")
	machineSwap   = gauge("machine_swap_bytes", "Amount of swap memory available on the machine.")
)

// Cadvisor collects what /metrics/cadvisor tells.
func (s *Stats) Cadvisor() prometheus.Collector { return &collector{s.collectCadvisor} }

func (s *Stats) collectCadvisor(ctx context.Context, ch chan<- prometheus.Metric) {
	n, err := s.sampleNode(ctx)
	if err != nil {
		klog.V(2).InfoS("Metrics of containers left out", "err", err)
		return
	}
	machineCores.now(ch, float64(n.cpus))
	machineMemory.now(ch, float64(n.capacity))
	machineSwap.now(ch, float64(n.swapTotal))
	root := []string{"", "/", "", "", "", ""}
	tellUsage(ch, &n.usage, root)
	tellLinks(ch, &n.usage, n.links, root)
	if s.opts.PodsCgroup != nil {
		if d, ok := s.opts.PodsCgroup(); ok && n.pods.known() {
			tellUsage(ch, &n.pods, []string{"", d.Path, "", "", "", ""})
		}
	}
	pods, err := s.samplePods(ctx)
	if err != nil {
		return
	}
	for _, p := range alone(pods) {
		s.tellPod(ch, p)
	}
}

// tellPod tells a pod and its containers.
func (s *Stats) tellPod(ch chan<- prometheus.Metric, p *pod) {
	labels := []string{"", p.cgroup.Path, "", "", p.pod.Namespace, p.pod.Name}
	if p.known() {
		tellUsage(ch, &p.usage, labels)
		tellCgroup(ch, &p.usage, &p.cgroup, labels)
		tellLinks(ch, &p.usage, p.links, labels)
	}
	for i := range p.containers {
		c := &p.containers[i]
		if !c.known() {
			continue
		}
		labels := []string{c.name, c.cgroup.Path, c.image, c.id, p.pod.Namespace, p.pod.Name}
		tellUsage(ch, &c.usage, labels)
		tellCgroup(ch, &c.usage, &c.cgroup, labels)
		cStart.now(ch, float64(c.started.UnixNano())/1e9, labels...)
		cSeen.tell(ch, c.at, ptr.To(float64(c.at.Unix())), labels...)
	}
}

// tellUsage tells what was sampled.
func tellUsage(ch chan<- prometheus.Metric, u *usage, labels []string) {
	more := func(values ...string) []string { return append(append([]string(nil), labels...), values...) }
	cCPU.tell(ch, u.at, seconds(u.cpu), more("total")...)
	cWorkingSet.tell(ch, u.at, whole(u.workingSet), labels...)
	cMemory.tell(ch, u.at, whole(u.memory), labels...)
	cRSS.tell(ch, u.at, whole(u.rss), labels...)
	cCache.tell(ch, u.at, whole(u.cache), labels...)
	cSwap.tell(ch, u.at, whole(u.swap), labels...)
	cThreads.tell(ch, u.at, whole(u.processes), labels...)
	cFaults.tell(ch, u.at, whole(u.faults), more("pgfault", "hierarchy")...)
	cFaults.tell(ch, u.at, whole(u.majorFaults), more("pgmajfault", "hierarchy")...)
}

// tellCgroup reads and tells what nobody else asks for: limits, how often they were met, and what was read and written.
func tellCgroup(ch chan<- prometheus.Metric, u *usage, d *cgroups.Dirs, labels []string) {
	more := func(values ...string) []string { return append(append([]string(nil), labels...), values...) }
	cLimit.now(ch, float64(ptr.Deref(u.limit, 0)), labels...)
	if d.Path == "" {
		return
	}
	cpu := table(read(d.Dir("cpu"), "cpu.stat"))
	cPeriods.tell(ch, u.at, whole(entry(cpu, "nr_periods")), labels...)
	cThrottled.tell(ch, u.at, whole(entry(cpu, "nr_throttled")), labels...)
	throttled := entry(cpu, "throttled_time") // ns
	if usec := entry(cpu, "throttled_usec"); usec != nil {
		throttled = ptr.To(*usec * 1000)
	}
	cThrottleS.tell(ch, u.at, seconds(throttled), labels...)
	if quota, period := quotaOf(d); period != nil {
		cPeriod.now(ch, float64(*period), labels...)
		if quota != nil {
			cQuota.now(ch, float64(*quota), labels...)
		}
	}
	cOOM.tell(ch, u.at, whole(ooms(d)), labels...)
	blocks, file := d.Dir("blkio"), "blkio.throttle.io_service_bytes_recursive"
	if d.Unified != "" {
		blocks, file = d.Unified, "io.stat"
	}
	if got, written, ok := blockIO(read(blocks, file)); ok {
		cFSReads.tell(ch, u.at, whole(&got), more("")...)
		cFSWrites.tell(ch, u.at, whole(&written), more("")...)
	}
}

// quotaOf is how many microseconds of the CPU there are in a period; no quota is no limit.
func quotaOf(d *cgroups.Dirs) (quota, period *uint64) {
	if d.Unified == "" {
		return number(read(d.Dir("cpu"), "cpu.cfs_quota_us")), number(read(d.Dir("cpu"), "cpu.cfs_period_us"))
	}
	most, every, ok := strings.Cut(strings.TrimSpace(read(d.Unified, "cpu.max")), " ")
	if !ok {
		return nil, nil
	}
	if quota = number(most); quota != nil && *quota == math.MaxUint64 {
		quota = nil
	}
	return quota, number(every)
}

// ooms counts what was killed for want of memory.
func ooms(d *cgroups.Dirs) *uint64 {
	if d.Unified != "" {
		return entry(table(read(d.Unified, "memory.events")), "oom_kill")
	}
	return entry(table(read(d.Dir("memory"), "memory.oom_control")), "oom_kill")
}

// tellLinks tells the interfaces.
func tellLinks(ch chan<- prometheus.Metric, u *usage, list []link, labels []string) {
	for i := range list {
		l := &list[i]
		labels := append(append([]string(nil), labels...), l.name)
		for _, one := range []struct {
			series series
			value  uint64
		}{
			{cRx, l.rxBytes}, {cRxP, l.rxPackets}, {cRxE, l.rxErrors}, {cRxD, l.rxDrop},
			{cTx, l.txBytes}, {cTxP, l.txPackets}, {cTxE, l.txErrors}, {cTxD, l.txDrop},
		} {
			one.series.tell(ch, u.at, whole(&one.value), labels...)
		}
	}
}
