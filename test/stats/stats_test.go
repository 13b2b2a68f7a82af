package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const forever = "; " + env.Forever

// within checks that a figure is there and lies between two others.
func within(t testing.TB, what string, got *uint64, least, most uint64) {
	t.Helper()
	if got == nil {
		t.Errorf("%s = nil, want %d to %d", what, least, most)
	} else if *got < least || *got > most {
		t.Errorf("%s is %d; want %d to %d", what, *got, least, most)
	}
}

// done is a pod that is ready when it has touched the file, however long that takes on a machine with much to do.
const done = "readinessProbe: {exec: {command: [test, -f, /tmp/done]}, periodSeconds: 1, timeoutSeconds: 30}\n"

func TestStats(t *testing.T) {
	n := newNode(t)
	n.pod("disk",
		"dd if=/dev/zero of=/root.bin bs=1M count=8; dd if=/dev/zero of=/data/file bs=1M count=4; cd /data; touch "+
			"$(seq 1 50);"+
			" dd if=/dev/zero of=/fast/file bs=1M count=2; yes | head -n 65536; touch /tmp/done"+forever,
		done+"volumeMounts:\n- {name: data, mountPath: /data}\n- {name: fast, mountPath: /fast}",
		"volumes:\n- {name: data, emptyDir: {}}\n- {name: fast, emptyDir: {medium: Memory, sizeLimit: 8Mi}}")
	// tail keeps what has no end of line.
	n.pod("memory", "(head -c 20971520 /dev/zero; sleep 1; touch /tmp/done; sleep 100000) | tail -n 1",
		done+"resources: {limits: {memory: 64Mi}}", "")
	n.pod("cpu", "while :; do :; done", "resources: {limits: {cpu: 200m}}", "")
	n.pod("probed", "touch /tmp/alive"+forever,
		"livenessProbe: {exec: {command: [test, -f, /tmp/alive]}, periodSeconds: 1, timeoutSeconds: 30}", "")
	n.pod("host", "true"+forever, "", "hostNetwork: true")
	n.Running("disk", "memory", "cpu", "probed", "host")
	n.testCheap()
	n.testSummary()
	n.testSmallDisks()
	n.testLikeTheRuntime()
	n.testResource()
	n.testCadvisor()
	n.testProbes()
}

// testCheap: a summary without the disk has what it was asked for, from the first time on.
func (n *node) testCheap() {
	summary, pods := n.summary("?only_cpu_and_memory=true")
	if summary.Node.CPU.UsageNanoCores == nil {
		n.T.Errorf("CPU of the node the first time = %+v, want it known", summary.Node.CPU)
	}
	within(n.T, "memory of the node that is available", summary.Node.Memory.AvailableBytes, mib, 1<<50)
	if len(pods) != 5 {
		n.T.Fatalf("the summary has %d pods, want 5", len(pods))
	}
	if pod := pods["cpu"]; pod.CPU.UsageNanoCores == nil || pod.Containers[0].CPU.UsageNanoCores == nil {
		n.T.Errorf("CPU of a pod the first time = %+v, want it known", pod)
	}
	// The kernel gives it its share every 100 ms, so that over a moment it may have a little more; a busy machine has
	// moments without any.
	wait.Until(n.T, "the CPU of a pod at 200m", func() error {
		summary, pods := n.summary("?only_cpu_and_memory=true")
		if used := summary.Node.CPU.UsageNanoCores; used == nil || *used < 50e6 || *used > 1e12 {
			return fmt.Errorf("node: %+v, want 50m or more", summary.Node.CPU)
		}
		for what, cpu := range map[string]*statsapi.CPUStats{
			"pod": pods["cpu"].CPU, "container": pods["cpu"].Containers[0].CPU,
		} {
			if used := cpu.UsageNanoCores; used == nil || *used < 20e6 || *used > 320e6 {
				return fmt.Errorf("%s: %+v, want 20m to 320m", what, cpu)
			}
		}
		return nil
	})
	if pods["disk"].EphemeralStorage != nil || summary.Node.Fs != nil {
		n.T.Errorf("figures of the disk = %+v, %+v, want none without a question", pods["disk"].EphemeralStorage,
			summary.Node.Fs)
	}
}

// measured waits until containerd, which does so from time to time, has measured what pod disk wrote, and has written
// its log: what the node has measured itself holds for a while.
func (n *node) measured() {
	wait.Until(n.T, "containerd to measure all that was written", func() error {
		list, err := n.CRI.ListContainerStats(n.T.Context(),
			&runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
				LabelSelector: map[string]string{"io.kubernetes.pod.name": "disk-" + n.NodeName},
			}})
		if err != nil {
			return err
		}
		if len(list.Stats) != 1 || list.Stats[0].GetWritableLayer().GetUsedBytes().GetValue() < 8*mib {
			return fmt.Errorf("root file system: %v", list.Stats)
		}
		logs, err := filepath.Glob(filepath.Join(n.PodLogs(), "default_disk-*", "main", "0.log"))
		if err != nil || len(logs) != 1 {
			return fmt.Errorf("logs %v: %w", logs, err)
		}
		info, err := os.Stat(logs[0])
		if err == nil && info.Size() < 2*mib {
			err = fmt.Errorf("log of %d bytes", info.Size())
		}
		return err
	})
}

func (n *node) testSummary() {
	n.measured()
	var summary *statsapi.Summary
	var pods map[string]*statsapi.PodStats
	wait.Until(n.T, "what was written to show", func() error {
		summary, pods = n.summary("")
		if fs := pods["disk"].Containers[0].Rootfs; fs == nil || *fs.UsedBytes < 8*mib {
			return fmt.Errorf("root file system %+v", fs)
		}
		if logs := pods["disk"].Containers[0].Logs; logs == nil || *logs.UsedBytes < 2*mib {
			return fmt.Errorf("logs %+v", logs)
		}
		// A probe that is begun in the container has processes, and memory, for a moment.
		if n := pods["memory"].ProcessStats.ProcessCount; n == nil || *n > 12 {
			return fmt.Errorf("processes of a pod with a shell: %v", ptr.Deref(n, 0))
		}
		if m := pods["memory"].Memory.WorkingSetBytes; m == nil || *m > 32*mib {
			return fmt.Errorf("working set of a pod that keeps 20 MiB: %d", ptr.Deref(m, 0))
		}
		return nil
	})
	memory := pods["memory"]
	within(n.T, "working set of a pod that keeps 20 MiB", memory.Memory.WorkingSetBytes, 20*mib, 32*mib)
	c := memory.Containers[0]
	within(n.T, "working set of its container", c.Memory.WorkingSetBytes, 20*mib, 32*mib)
	within(n.T, "RSS of its container", c.Memory.RSSBytes, 20*mib, 32*mib)
	within(n.T, "what its limit of 64 MiB leaves", c.Memory.AvailableBytes, 32*mib, 44*mib)
	within(n.T, "processes of a pod", memory.ProcessStats.ProcessCount, 3, 12)

	disk := pods["disk"]
	within(n.T, "root file system with 8 MiB", disk.Containers[0].Rootfs.UsedBytes, 8*mib, 9*mib)
	within(n.T, "inodes of it", disk.Containers[0].Rootfs.InodesUsed, 1, 30)
	within(n.T, "logs with 65536 lines, each with its time", disk.Containers[0].Logs.UsedBytes, 2*mib, 4*mib)
	volumes := map[string]statsapi.VolumeStats{}
	for _, v := range disk.VolumeStats {
		volumes[v.Name] = v
	}
	data, fast := volumes["data"], volumes["fast"]
	within(n.T, "emptyDir with 4 MiB", data.UsedBytes, 4*mib, 5*mib)
	within(n.T, "inodes of 51 files and a folder", data.InodesUsed, 52, 52)
	within(n.T, "emptyDir in memory with 2 MiB", fast.UsedBytes, 2*mib, 3*mib)
	within(n.T, "capacity of it", fast.CapacityBytes, 8*mib, 8*mib)
	all := *disk.Containers[0].Rootfs.UsedBytes + *disk.Containers[0].Logs.UsedBytes + *data.UsedBytes
	within(n.T, "all that the pod has on the disk", disk.EphemeralStorage.UsedBytes, all, all+64<<10)

	for _, name := range []string{"disk", "memory"} {
		if net := pods[name].Network; net == nil || net.Name != "eth0" || len(net.Interfaces) != 1 {
			n.T.Errorf("network of %s = %+v, want one interface eth0", name, net)
		}
	}
	if net := pods["host"].Network; net != nil {
		n.T.Errorf("network of a pod on the host's network = %+v, want none", net)
	}
	system := map[string]bool{}
	for _, c := range summary.Node.SystemContainers {
		system[c.Name] = c.Memory != nil && c.Memory.WorkingSetBytes != nil && *c.Memory.WorkingSetBytes > mib
	}
	if !system[statsapi.SystemContainerPods] || !system[statsapi.SystemContainerKubelet] {
		n.T.Errorf("system containers with memory = %v, want %s and %s", system, statsapi.SystemContainerPods,
			statsapi.SystemContainerKubelet)
	}
	if r := summary.Node.Rlimit; r == nil || *r.NumOfRunningProcesses < 10 || *r.MaxPID <= *r.NumOfRunningProcesses {
		n.T.Errorf("processes of the node = %+v, want 10 or more, and fewer than maxpid", r)
	}
}

// testSmallDisks: the file systems are those that the folders lie on, and what is written shows.
func (n *node) testSmallDisks() {
	var summary *statsapi.Summary
	wait.Until(n.T, "the runtime to report its disks", func() error {
		if summary, _ = n.summary(""); summary.Node.Fs == nil || summary.Node.Runtime == nil ||
			summary.Node.Runtime.ImageFs == nil || summary.Node.Runtime.ContainerFs == nil {
			return fmt.Errorf("file system %+v, runtime %+v", summary.Node.Fs, summary.Node.Runtime)
		}
		return nil
	})
	within(n.T, "capacity of the node's disk", summary.Node.Fs.CapacityBytes, nodeDisk, nodeDisk)
	within(n.T, "capacity of the disk of images", summary.Node.Runtime.ImageFs.CapacityBytes, imageDisk, imageDisk)
	within(n.T, "capacity of the disk of containers", summary.Node.Runtime.ContainerFs.CapacityBytes, imageDisk,
		imageDisk)
	within(n.T, "what images take", summary.Node.Runtime.ImageFs.UsedBytes, mib, imageDisk)
	before := *summary.Node.Fs.AvailableBytes
	n.pod("writer", "dd if=/dev/zero of=/data/file bs=1M count=5; touch /tmp/done"+forever,
		done+"volumeMounts:\n- {name: data, mountPath: /data}", "volumes:\n- {name: data, emptyDir: {}}")
	n.Running("writer")
	wait.Until(n.T, "what was written to show", func() error {
		summary, pods := n.summary("")
		if gone := before - min(before, *summary.Node.Fs.AvailableBytes); gone < 5*mib {
			return fmt.Errorf("of the disk %d bytes less", gone)
		}
		if p := pods["writer"]; p == nil || p.EphemeralStorage == nil || *p.EphemeralStorage.UsedBytes < 5*mib {
			return fmt.Errorf("pod %+v", p)
		}
		return nil
	})
}

// testLikeTheRuntime: what the files of cgroups say is what the runtime says.
func (n *node) testLikeTheRuntime() {
	// ofRuntime returns the runtime's statistics of the container of a pod.
	ofRuntime := func(name string) *runtimeapi.ContainerStats {
		list, err := n.CRI.ListContainerStats(n.T.Context(),
			&runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
				LabelSelector: map[string]string{"io.kubernetes.pod.name": name + "-" + n.NodeName},
			}})
		env.Must(n.T, err)
		if len(list.Stats) != 1 {
			n.T.Fatalf("the runtime has statistics of %d containers of pod %s, want 1", len(list.Stats), name)
		}
		return list.Stats[0]
	}
	// between the two a probe may run in the container
	wait.Until(n.T, "the working set to be the runtime's", func() error {
		_, pods := n.summary("?only_cpu_and_memory=true")
		ours := *pods["memory"].Containers[0].Memory.WorkingSetBytes
		theirs := ofRuntime("memory").GetMemory().GetWorkingSetBytes().GetValue()
		if ours+mib < theirs || ours > theirs+mib {
			return fmt.Errorf("%d bytes, the runtime says %d", ours, theirs)
		}
		return nil
	})
	// The container spins: what it has used lies between two readings of the runtime.
	least := ofRuntime("cpu").GetCpu().GetUsageCoreNanoSeconds().GetValue()
	var ours *uint64
	wait.Until(n.T, "the CPU time to be the runtime's or more", func() error {
		_, pods := n.summary("?only_cpu_and_memory=true")
		if ours = pods["cpu"].Containers[0].CPU.UsageCoreNanoSeconds; ours == nil || *ours < least {
			return fmt.Errorf("%d ns, the runtime said %d before", ptr.Deref(ours, 0), least)
		}
		return nil
	})
	within(n.T, "CPU time beside that of the runtime", ours, least,
		ofRuntime("cpu").GetCpu().GetUsageCoreNanoSeconds().GetValue())
}

// testResource: what metrics-server reads.
func (n *node) testResource() {
	got := n.metrics("/metrics/resource")
	labels := map[string]string{"namespace": "default", "pod": "memory-" + n.NodeName, "container": "main"}
	if v, ok := value(got["container_memory_working_set_bytes"], labels); !ok || v < 20*mib || v > 32*mib {
		n.T.Errorf("working set of pod memory = %f, %t, want 20 to 32 MiB", v, ok)
	}
	labels["pod"] = "cpu-" + n.NodeName
	if v, ok := value(got["container_cpu_usage_seconds_total"], labels); !ok || v <= 0 {
		n.T.Errorf("CPU of pod cpu = %f, %t, want more than 0", v, ok)
	}
	for _, name := range []string{
		"node_cpu_usage_seconds_total", "node_memory_working_set_bytes", "pod_cpu_usage_seconds_total",
		"pod_memory_working_set_bytes", "container_start_time_seconds",
	} {
		if v, ok := value(got[name], nil); !ok || v <= 0 {
			n.T.Errorf("%s = %f, %t, want more than 0", name, v, ok)
		}
	}
	if v, ok := value(got["resource_scrape_error"], nil); !ok || v != 0 {
		n.T.Errorf("resource_scrape_error = %f, %t, want 0", v, ok)
	}
}

func (n *node) testCadvisor() {
	got := n.metrics("/metrics/cadvisor")
	spin := map[string]string{"pod": "cpu-" + n.NodeName, "container": "main", "image": "edgecore.local/demo:1"}
	if v, ok := value(got["container_cpu_cfs_throttled_periods_total"], spin); !ok || v < 1 {
		n.T.Errorf("a container above its limit was throttled in %f periods, %t, want 1 or more", v, ok)
	}
	if v, ok := value(got["container_spec_cpu_quota"], spin); !ok || v != 20000 {
		n.T.Errorf("CPU quota = %f, %t, want 20000", v, ok)
	}
	if v, ok := value(got["container_spec_memory_limit_bytes"],
		map[string]string{"pod": "memory-" + n.NodeName, "container": "main"}); !ok || v != 64*mib {
		n.T.Errorf("memory limit = %f, %t, want 64 MiB", v, ok)
	}
	if _, ok := value(got["container_network_receive_bytes_total"],
		map[string]string{"pod": "disk-" + n.NodeName, "interface": "eth0"}); !ok {
		n.T.Error("no received bytes of eth0 of pod disk, want them")
	}
	if v, ok := value(got["container_memory_working_set_bytes"], map[string]string{"id": "/"}); !ok || v < mib {
		n.T.Errorf("working set of the node = %f, %t, want 1 MiB or more", v, ok)
	}
	all := 0.0
	for _, m := range got["container_memory_working_set_bytes"].GetMetric() {
		for _, l := range m.Label {
			// By files it ends so, by systemd in a slice.
			if l.GetName() == "id" && strings.HasSuffix(strings.TrimSuffix(l.GetValue(), ".slice"), "kubepods") {
				all += m.GetGauge().GetValue()
			}
		}
	}
	if all < 20*mib {
		n.T.Errorf("working set of all pods = %f, want 20 MiB or more", all)
	}
}

// testProbes: what becomes of probes is counted.
func (n *node) testProbes() {
	wait.Until(n.T, "probes to be counted", func() error {
		got := n.metrics("/metrics/probes")
		labels := map[string]string{"pod": "probed-" + n.NodeName, "container": "main", "probe_type": "Liveness",
			"result": "successful"}
		if v, ok := value(got["prober_probe_total"], labels); !ok || v < 2 {
			return fmt.Errorf("successful probes = %f, %t, want 2 or more", v, ok)
		}
		if got["prober_probe_duration_seconds"] == nil {
			return fmt.Errorf("no durations")
		}
		return nil
	})
}
