package stats

import (
	"context"
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
)

// The main series of /metrics/cadvisor, under the labels that dashboards and rules select by: those of a whole pod have
// no container and no image, those of the node have the id "/".
var (
	cadvisorLabels = []string{"container", "id", "image", "name", "namespace", "pod"}
	with           = func(more string) []string { return append(append([]string(nil), cadvisorLabels...), more) }

	cCPU     = counter("container_cpu_usage_seconds_total", "CPU time used, in seconds", with("cpu")...)
	cPeriods = counter("container_cpu_cfs_periods_total", "Periods in which the CPU quota was enforced",
		cadvisorLabels...)
	cThrottled = counter("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up",
		cadvisorLabels...)
	cThrottleS = counter("container_cpu_cfs_throttled_seconds_total",
		"Time spent waiting because the CPU quota was used up, in seconds", cadvisorLabels...)
	cWorkingSet = gauge("container_memory_working_set_bytes", "Memory that the kernel cannot easily take back",
		cadvisorLabels...)
	cMemory = gauge("container_memory_usage_bytes", "Memory in use, page cache included", cadvisorLabels...)
	cRSS    = gauge("container_memory_rss", "Anonymous memory, in bytes", cadvisorLabels...)
	cCache  = gauge("container_memory_cache", "Page cache, in bytes", cadvisorLabels...)
	cSwap   = gauge("container_memory_swap", "Swap in use, in bytes", cadvisorLabels...)
	cFaults = counter("container_memory_failures_total", "Page faults, by type",
		append(with("failure_type"), "scope")...)
	cOOM = counter("container_oom_events_total", "Times that the kernel killed a process because memory ran out",
		cadvisorLabels...)
	cThreads = gauge("container_threads", "Threads", cadvisorLabels...)
	cLimit   = gauge("container_spec_memory_limit_bytes", "Memory limit; 0 is none", cadvisorLabels...)
	cQuota   = gauge("container_spec_cpu_quota", "CPU time allowed in each period, in microseconds",
		cadvisorLabels...)
	cPeriod = gauge("container_spec_cpu_period", "Length of a period of the CPU quota, in microseconds",
		cadvisorLabels...)
	cStart = gauge("container_start_time_seconds", "When the container started, in seconds since 1970",
		cadvisorLabels...)
	cSeen = gauge("container_last_seen", "When the container was last measured, in seconds since 1970",
		cadvisorLabels...)
	cFSReads  = counter("container_fs_reads_bytes_total", "Bytes read from a device", with("device")...)
	cFSWrites = counter("container_fs_writes_bytes_total", "Bytes written to a device", with("device")...)
	cFSReadN  = counter("container_fs_reads_total", "Read operations of a device", with("device")...)
	cFSWriteN = counter("container_fs_writes_total", "Write operations of a device", with("device")...)
	cUserCPU  = counter("container_cpu_user_seconds_total", "CPU time used in user mode, in seconds",
		cadvisorLabels...)
	cSystemCPU = counter("container_cpu_system_seconds_total", "CPU time used in the kernel, in seconds",
		cadvisorLabels...)
	cShares    = gauge("container_spec_cpu_shares", "Share of the CPU, in the unit of cgroup v1", cadvisorLabels...)
	cSwapLimit = gauge("container_spec_memory_swap_limit_bytes",
		"Limit of swap, on cgroup v1 of memory and swap together; 0 is none", cadvisorLabels...)
	cReserved = gauge("container_spec_memory_reservation_limit_bytes",
		"Memory that the kernel tries to reserve for the container; 0 is none", cadvisorLabels...)
	cFailures  = counter("container_memory_failcnt", "Times that memory use reached its limit", cadvisorLabels...)
	cMaxMemory = gauge("container_memory_max_usage_bytes", "Largest memory use so far", cadvisorLabels...)
	cMapped    = gauge("container_memory_mapped_file", "Mapped files in memory, in bytes", cadvisorLabels...)
	cKernel    = gauge("container_memory_kernel_usage", "Memory of the kernel, in bytes", cadvisorLabels...)
	cActive    = gauge("container_memory_total_active_file_bytes", "Page cache on the kernel's active list, in bytes",
		cadvisorLabels...)
	cInactive = gauge("container_memory_total_inactive_file_bytes",
		"Page cache on the kernel's inactive list, in bytes", cadvisorLabels...)
	cProcesses  = gauge("container_processes", "Processes", cadvisorLabels...)
	cThreadsMax = gauge("container_threads_max", "Limit of threads; 0 is none", cadvisorLabels...)
	cError      = gauge("container_scrape_error", "1 if figures of containers could not be read, else 0")

	cRx  = counter("container_network_receive_bytes_total", "Bytes received", with("interface")...)
	cRxP = counter("container_network_receive_packets_total", "Packets received", with("interface")...)
	cRxE = counter("container_network_receive_errors_total", "Errors while receiving", with("interface")...)
	cRxD = counter("container_network_receive_packets_dropped_total", "Received packets that were dropped",
		with("interface")...)
	cTx  = counter("container_network_transmit_bytes_total", "Bytes sent", with("interface")...)
	cTxP = counter("container_network_transmit_packets_total", "Packets sent", with("interface")...)
	cTxE = counter("container_network_transmit_errors_total", "Errors while sending", with("interface")...)
	cTxD = counter("container_network_transmit_packets_dropped_total",
		"Packets that were dropped before they were sent", with("interface")...)

	machineLabels = []string{"boot_id", "machine_id", "system_uuid"}
	machineCores  = gauge("machine_cpu_cores", "Logical CPUs of the machine", machineLabels...)
	machineMemory = gauge("machine_memory_bytes", "Memory of the machine", machineLabels...)
	machineSwap   = gauge("machine_swap_bytes", "Swap of the machine", machineLabels...)
	machineError  = gauge("machine_scrape_error", "1 if figures of the machine could not be read, else 0")
	versionInfo   = gauge("cadvisor_version_info",
		"1; the labels name the kernel and the operating system",
		"cadvisorRevision", "cadvisorVersion", "dockerVersion", "kernelVersion", "osVersion")
)

// Cadvisor collects what /metrics/cadvisor tells.
func (s *Stats) Cadvisor() prometheus.Collector { return &collector{s.collectCadvisor} }

func (s *Stats) collectCadvisor(ctx context.Context, ch chan<- prometheus.Metric) {
	n, err := s.sampleNode(ctx)
	var pods []*pod
	if err == nil {
		pods, err = s.samplePods(ctx)
	}
	failed := 0.0
	if err != nil {
		klog.V(2).InfoS("Metrics of containers left out", "err", err)
		failed = 1
	}
	cError.sendNow(ch, failed)
	machineError.sendNow(ch, failed)
	if err != nil {
		return
	}
	sys := &s.opts.System
	versionInfo.sendNow(ch, 1, "", "", "", sys.KernelVersion, sys.OSImage)
	machine := []string{sys.BootID, sys.MachineID, sys.SystemUUID}
	machineCores.sendNow(ch, float64(n.cpus), machine...)
	machineMemory.sendNow(ch, float64(n.capacity), machine...)
	machineSwap.sendNow(ch, float64(n.swapTotal), machine...)
	root := []string{"", "/", "", "", "", ""}
	collectUsage(ch, &n.usage, root)
	collectLinks(ch, &n.usage, n.links, root)
	if s.opts.PodsCgroup != nil {
		if d, ok := s.opts.PodsCgroup(); ok && n.pods.known() {
			collectUsage(ch, &n.pods, []string{"", d.Path, "", "", "", ""})
		}
	}
	disks := devices(read(s.opts.Proc, "partitions"))
	for _, p := range uniqueByName(pods) {
		s.tellPod(ch, p, disks)
	}
}

// tellPod tells a pod and its containers. disks names devices by their numbers.
func (s *Stats) tellPod(ch chan<- prometheus.Metric, p *pod, disks map[string]string) {
	labels := []string{"", p.cgroup.Path, "", "", p.pod.Namespace, p.pod.Name}
	if p.known() {
		collectUsage(ch, &p.usage, labels)
		collectCgroup(ch, &p.usage, &p.cgroup, disks, labels)
		collectLinks(ch, &p.usage, p.links, labels)
	}
	for i := range p.containers {
		c := &p.containers[i]
		if !c.known() {
			continue
		}
		labels := []string{c.name, c.cgroup.Path, c.image, c.id, p.pod.Namespace, p.pod.Name}
		collectUsage(ch, &c.usage, labels)
		collectCgroup(ch, &c.usage, &c.cgroup, disks, labels)
		cStart.sendNow(ch, float64(c.started.UnixNano())/1e9, labels...)
		cSeen.send(ch, c.at, ptr.To(float64(c.at.Unix())), labels...)
	}
}

// collectUsage reports what was sampled.
func collectUsage(ch chan<- prometheus.Metric, u *usage, labels []string) {
	more := func(values ...string) []string { return append(append([]string(nil), labels...), values...) }
	cCPU.send(ch, u.at, seconds(u.cpu), more("total")...)
	cWorkingSet.send(ch, u.at, whole(u.workingSet), labels...)
	cMemory.send(ch, u.at, whole(u.memory), labels...)
	cRSS.send(ch, u.at, whole(u.rss), labels...)
	cCache.send(ch, u.at, whole(u.cache), labels...)
	cSwap.send(ch, u.at, whole(u.swap), labels...)
	cThreads.send(ch, u.at, whole(u.processes), labels...)
	cFaults.send(ch, u.at, whole(u.faults), more("pgfault", "hierarchy")...)
	cFaults.send(ch, u.at, whole(u.majorFaults), more("pgmajfault", "hierarchy")...)
}

// collectCgroup reads and tells what nobody else asks for: limits, how often they were met, and what was read and
// written.
func collectCgroup(ch chan<- prometheus.Metric, u *usage, d *cgroups.Dirs, disks map[string]string, labels []string) {
	cLimit.sendNow(ch, float64(ptr.Deref(u.limit, 0)), labels...)
	if d.Path == "" {
		return
	}
	collectCPU(ch, u, d, labels)
	collectMemory(ch, u, d, labels)
	cOOM.send(ch, u.at, whole(ooms(d)), labels...)
	pids := d.Dir("pids")
	cThreadsMax.sendNow(ch, float64(ptr.Deref(limited(number(read(pids, "pids.max"))), 0)), labels...)
	if processes := read(mainDir(d), "cgroup.procs"); processes != "" {
		cProcesses.send(ch, u.at, ptr.To(float64(strings.Count(processes, "\n"))), labels...)
	}
	blocks, bytes, counts := d.Dir("blkio"), "blkio.throttle.io_service_bytes_recursive",
		"blkio.throttle.io_serviced_recursive"
	if d.Unified != "" {
		blocks, bytes, counts = d.Unified, "io.stat", "io.stat"
	}
	collectBlocks(ch, u, blockIO(read(blocks, bytes), "rbytes", "wbytes"), cFSReads, cFSWrites, disks, labels)
	collectBlocks(ch, u, blockIO(read(blocks, counts), "rios", "wios"), cFSReadN, cFSWriteN, disks, labels)
}

// collectCPU tells the CPU time and its limits. Without a quota nothing is throttled, and dashboards divide by periods.
func collectCPU(ch chan<- prometheus.Metric, u *usage, d *cgroups.Dirs, labels []string) {
	cpu := table(read(d.Dir("cpu"), "cpu.stat"))
	cUserCPU.send(ch, u.at, seconds(cpuPart(d, cpu, "user")), labels...)
	cSystemCPU.send(ch, u.at, seconds(cpuPart(d, cpu, "system")), labels...)
	if shares := sharesOf(d); shares != nil {
		cShares.sendNow(ch, float64(*shares), labels...)
	}
	quota, period := quotaOf(d)
	if period != nil {
		cPeriod.sendNow(ch, float64(*period), labels...)
	}
	if quota == nil {
		return
	}
	cQuota.sendNow(ch, float64(*quota), labels...)
	cPeriods.send(ch, u.at, whole(entry(cpu, "nr_periods")), labels...)
	cThrottled.send(ch, u.at, whole(entry(cpu, "nr_throttled")), labels...)
	throttled := entry(cpu, "throttled_time") // ns
	if usec := entry(cpu, "throttled_usec"); usec != nil {
		throttled = ptr.To(*usec * 1000)
	}
	cThrottleS.send(ch, u.at, seconds(throttled), labels...)
}

// cpuPart is how long a cgroup ran in the mode "user" or "system", in nanoseconds.
func cpuPart(d *cgroups.Dirs, cpu map[string]uint64, mode string) *uint64 {
	if d.Unified != "" {
		if n := entry(cpu, mode+"_usec"); n != nil {
			return ptr.To(*n * 1000)
		}
		return nil
	}
	if n := entry(table(read(d.Dir("cpuacct"), "cpuacct.stat")), mode); n != nil {
		return ptr.To(*n * (1e9 / hertz))
	}
	return nil
}

// sharesOf is a cgroup's part of the CPU in the unit of v1.
func sharesOf(d *cgroups.Dirs) *uint64 {
	if d.Unified == "" {
		return number(read(d.Dir("cpu"), "cpu.shares"))
	}
	weight := number(read(d.Unified, "cpu.weight"))
	if weight == nil || *weight == 0 || *weight > 10000 {
		return nil
	}
	return ptr.To(2 + (*weight-1)*262142/9999)
}

// collectMemory reports what memory is used for, and its limits; 0 means no limit.
func collectMemory(ch chan<- prometheus.Metric, u *usage, d *cgroups.Dirs, labels []string) {
	dir, prefix := d.Unified, ""
	peak, kernel, swap, reserved := "memory.peak", "", "memory.swap.max", "memory.low"
	if dir == "" {
		dir, prefix = d.Dir("memory"), "total_"
		peak, kernel, swap, reserved = "memory.max_usage_in_bytes", "memory.kmem.usage_in_bytes",
			"memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"
	}
	stat := table(read(dir, "memory.stat"))
	if len(stat) == 0 {
		return
	}
	more := func(values ...string) []string { return append(append([]string(nil), labels...), values...) }
	failures, used := number(read(dir, "memory.failcnt")), number(read(dir, kernel))
	if d.Unified != "" {
		failures, used = entry(table(read(dir, "memory.events")), "max"), entry(stat, "kernel")
	}
	cFailures.send(ch, u.at, whole(failures), labels...)
	cKernel.send(ch, u.at, whole(used), labels...)
	cMaxMemory.send(ch, u.at, whole(number(read(dir, peak))), labels...)
	mapped := prefix + "mapped_file"
	if d.Unified != "" {
		mapped = "file_mapped"
	}
	cMapped.send(ch, u.at, whole(entry(stat, mapped)), labels...)
	cActive.send(ch, u.at, whole(entry(stat, prefix+"active_file")), labels...)
	cInactive.send(ch, u.at, whole(entry(stat, prefix+"inactive_file")), labels...)
	cFaults.send(ch, u.at, whole(entry(stat, "pgfault")), more("pgfault", "container")...)
	cFaults.send(ch, u.at, whole(entry(stat, "pgmajfault")), more("pgmajfault", "container")...)
	cSwapLimit.sendNow(ch, float64(ptr.Deref(limited(number(read(dir, swap))), 0)), labels...)
	cReserved.sendNow(ch, float64(ptr.Deref(limited(number(read(dir, reserved))), 0)), labels...)
}

// collectBlocks reports what was read and written, for each device.
func collectBlocks(
	ch chan<- prometheus.Metric, u *usage, all []blocks, reads, writes series, disks map[string]string, labels []string,
) {
	for i := range all {
		b := &all[i]
		labels := append(append([]string(nil), labels...), disks[b.device])
		reads.send(ch, u.at, whole(&b.read), labels...)
		writes.send(ch, u.at, whole(&b.written), labels...)
	}
}

// quotaOf returns how many microseconds of CPU time a period allows; without a quota there is no limit.
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

// collectLinks tells the interfaces.
func collectLinks(ch chan<- prometheus.Metric, u *usage, list []link, labels []string) {
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
			one.series.send(ch, u.at, whole(&one.value), labels...)
		}
	}
}
