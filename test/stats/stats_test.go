package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv"
)

const forever = "; trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

// within checks that a figure is there and lies between two others.
func within(t *testing.T, what string, got *uint64, least, most uint64) {
	t.Helper()
	if got == nil {
		t.Errorf("%s is not known", what)
	} else if *got < least || *got > most {
		t.Errorf("%s is %d; want %d to %d", what, *got, least, most)
	}
}

// done is a pod that is ready when it has touched the file, however long that takes on a machine with much to do.
const done = "readinessProbe: {exec: {command: [test, -f, /tmp/done]}, periodSeconds: 1, timeoutSeconds: 30}\n"

func TestStats(t *testing.T) {
	n := newNode(t, testenv.Options{})
	n.pod("disk", "dd if=/dev/zero of=/root.bin bs=1M count=8; dd if=/dev/zero of=/data/file bs=1M count=4; cd /data; touch $(seq 1 50);"+
		" dd if=/dev/zero of=/fast/file bs=1M count=2; yes | head -n 65536; touch /tmp/done"+forever,
		done+"volumeMounts:\n- {name: data, mountPath: /data}\n- {name: fast, mountPath: /fast}",
		"volumes:\n- {name: data, emptyDir: {}}\n- {name: fast, emptyDir: {medium: Memory, sizeLimit: 8Mi}}")
	// tail keeps what has no end of line.
	n.pod("memory", "(head -c 20971520 /dev/zero; sleep 1; touch /tmp/done; sleep 100000) | tail -n 1", done+"resources: {limits: {memory: 64Mi}}", "")
	n.pod("cpu", "while :; do :; done", "resources: {limits: {cpu: 200m}}", "")
	n.pod("probed", "touch /tmp/alive"+forever, "livenessProbe: {exec: {command: [test, -f, /tmp/alive]}, periodSeconds: 1, timeoutSeconds: 30}", "")
	n.pod("host", "true"+forever, "", "hostNetwork: true")
	n.running("disk", "memory", "cpu", "probed", "host")
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
	within(n.t, "CPU of a node with a pod at 200m", summary.Node.CPU.UsageNanoCores, 50e6, 1e12)
	within(n.t, "memory of the node that is available", summary.Node.Memory.AvailableBytes, mib, 1<<50)
	if len(pods) != 5 {
		n.t.Fatalf("%d pods", len(pods))
	}
	if pod := pods["cpu"]; pod.CPU.UsageNanoCores == nil || pod.Containers[0].CPU.UsageNanoCores == nil {
		n.t.Errorf("CPU of a pod is not known the first time: %+v", pod)
	}
	// The kernel gives it its share every 100 ms, so that over a moment it may have a little more; a busy machine has moments
	// without any.
	n.until("CPU of a pod at 200m", func() error {
		_, pods := n.summary("?only_cpu_and_memory=true")
		for what, cpu := range map[string]*statsapi.CPUStats{"pod": pods["cpu"].CPU, "container": pods["cpu"].Containers[0].CPU} {
			if used := cpu.UsageNanoCores; used == nil || *used < 20e6 || *used > 320e6 {
				return fmt.Errorf("%s: %+v", what, cpu)
			}
		}
		return nil
	})
	if pods["disk"].EphemeralStorage != nil || summary.Node.Fs != nil {
		n.t.Error("figures of the disk that nobody asked for")
	}
}

// measured waits until containerd, which does so from time to time, has measured what pod disk wrote, and has written its log:
// what the node has measured itself holds for a while.
func (n *node) measured() {
	client := testenv.Dial(n.t, n.ctrd)
	n.until("containerd has all that was written", func() error {
		list, err := client.ListContainerStats(n.t.Context(), &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
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
	n.until("what was written shows", func() error {
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
	within(n.t, "working set of a pod that keeps 20 MiB", memory.Memory.WorkingSetBytes, 20*mib, 32*mib)
	c := memory.Containers[0]
	within(n.t, "working set of its container", c.Memory.WorkingSetBytes, 20*mib, 32*mib)
	within(n.t, "RSS of its container", c.Memory.RSSBytes, 20*mib, 32*mib)
	within(n.t, "what its limit of 64 MiB leaves", c.Memory.AvailableBytes, 32*mib, 44*mib)
	within(n.t, "processes of a pod", memory.ProcessStats.ProcessCount, 3, 12)

	disk := pods["disk"]
	within(n.t, "root file system with 8 MiB", disk.Containers[0].Rootfs.UsedBytes, 8*mib, 9*mib)
	within(n.t, "inodes of it", disk.Containers[0].Rootfs.InodesUsed, 1, 30)
	within(n.t, "logs with 65536 lines, each with its time", disk.Containers[0].Logs.UsedBytes, 2*mib, 4*mib)
	volumes := map[string]statsapi.VolumeStats{}
	for _, v := range disk.VolumeStats {
		volumes[v.Name] = v
	}
	data, fast := volumes["data"], volumes["fast"]
	within(n.t, "emptyDir with 4 MiB", data.UsedBytes, 4*mib, 5*mib)
	within(n.t, "inodes of 51 files and a folder", data.InodesUsed, 52, 52)
	within(n.t, "emptyDir in memory with 2 MiB", fast.UsedBytes, 2*mib, 3*mib)
	within(n.t, "capacity of it", fast.CapacityBytes, 8*mib, 8*mib)
	all := *disk.Containers[0].Rootfs.UsedBytes + *disk.Containers[0].Logs.UsedBytes + *data.UsedBytes
	within(n.t, "all that the pod has on the disk", disk.EphemeralStorage.UsedBytes, all, all+64<<10)

	for _, name := range []string{"disk", "memory"} {
		if net := pods[name].Network; net == nil || net.Name != "eth0" || len(net.Interfaces) != 1 {
			n.t.Errorf("network of %s: %+v", name, net)
		}
	}
	if net := pods["host"].Network; net != nil {
		n.t.Errorf("a pod on the host's network has one of its own: %+v", net)
	}
	system := map[string]bool{}
	for _, c := range summary.Node.SystemContainers {
		system[c.Name] = c.Memory != nil && c.Memory.WorkingSetBytes != nil && *c.Memory.WorkingSetBytes > mib
	}
	if !system[statsapi.SystemContainerPods] || !system[statsapi.SystemContainerKubelet] {
		n.t.Errorf("system containers %v", system)
	}
	if r := summary.Node.Rlimit; r == nil || *r.NumOfRunningProcesses < 10 || *r.MaxPID <= *r.NumOfRunningProcesses {
		n.t.Errorf("processes of the node: %+v", r)
	}
}

// testSmallDisks: the file systems are those that the folders lie on, and what is written shows.
func (n *node) testSmallDisks() {
	var summary *statsapi.Summary
	n.until("the runtime tells of its disks", func() error {
		if summary, _ = n.summary(""); summary.Node.Fs == nil || summary.Node.Runtime == nil || summary.Node.Runtime.ImageFs == nil || summary.Node.Runtime.ContainerFs == nil {
			return fmt.Errorf("file system %+v, runtime %+v", summary.Node.Fs, summary.Node.Runtime)
		}
		return nil
	})
	within(n.t, "capacity of the node's disk", summary.Node.Fs.CapacityBytes, nodeDisk, nodeDisk)
	within(n.t, "capacity of the disk of images", summary.Node.Runtime.ImageFs.CapacityBytes, imageDisk, imageDisk)
	within(n.t, "capacity of the disk of containers", summary.Node.Runtime.ContainerFs.CapacityBytes, imageDisk, imageDisk)
	within(n.t, "what images take", summary.Node.Runtime.ImageFs.UsedBytes, mib, imageDisk)
	before := *summary.Node.Fs.AvailableBytes
	n.pod("writer", "dd if=/dev/zero of=/data/file bs=1M count=5; touch /tmp/done"+forever,
		done+"volumeMounts:\n- {name: data, mountPath: /data}", "volumes:\n- {name: data, emptyDir: {}}")
	n.running("writer")
	n.until("what was written shows", func() error {
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
	client := testenv.Dial(n.t, n.ctrd)
	var pods map[string]*statsapi.PodStats
	byPod := map[types.UID]*runtimeapi.ContainerStats{}
	n.until("the working set is the runtime's", func() error { // between the two a probe may run in the container
		_, pods = n.summary("?only_cpu_and_memory=true")
		list, err := client.ListContainerStats(n.t.Context(), &runtimeapi.ListContainerStatsRequest{})
		if err != nil {
			return err
		}
		for _, s := range list.Stats {
			byPod[types.UID(s.Attributes.Labels["io.kubernetes.pod.uid"])] = s
		}
		ours := *pods["memory"].Containers[0].Memory.WorkingSetBytes
		theirs := byPod[types.UID(pods["memory"].PodRef.UID)].GetMemory().GetWorkingSetBytes().GetValue()
		if ours+mib < theirs || ours > theirs+mib {
			return fmt.Errorf("%d bytes, the runtime says %d", ours, theirs)
		}
		return nil
	})
	spin := byPod[types.UID(pods["cpu"].PodRef.UID)].GetCpu().GetUsageCoreNanoSeconds().GetValue()
	within(n.t, "CPU beside that of the runtime", pods["cpu"].Containers[0].CPU.UsageCoreNanoSeconds, spin/2, spin)
}

// testResource: what metrics-server reads.
func (n *node) testResource() {
	got := n.metrics("/metrics/resource")
	labels := map[string]string{"namespace": "default", "pod": "memory-" + n.NodeName, "container": "main"}
	if v, ok := value(got["container_memory_working_set_bytes"], labels); !ok || v < 20*mib || v > 32*mib {
		n.t.Errorf("working set %f, %t", v, ok)
	}
	labels["pod"] = "cpu-" + n.NodeName
	if v, ok := value(got["container_cpu_usage_seconds_total"], labels); !ok || v <= 0 {
		n.t.Errorf("CPU %f, %t", v, ok)
	}
	for _, name := range []string{"node_cpu_usage_seconds_total", "node_memory_working_set_bytes", "pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes", "container_start_time_seconds"} {
		if v, ok := value(got[name], nil); !ok || v <= 0 {
			n.t.Errorf("%s %f, %t", name, v, ok)
		}
	}
	if v, ok := value(got["resource_scrape_error"], nil); !ok || v != 0 {
		n.t.Errorf("scrape error %f, %t", v, ok)
	}
}

func (n *node) testCadvisor() {
	got := n.metrics("/metrics/cadvisor")
	spin := map[string]string{"pod": "cpu-" + n.NodeName, "container": "main", "image": "edgecore.local/demo:1"}
	if v, ok := value(got["container_cpu_cfs_throttled_periods_total"], spin); !ok || v < 1 {
		n.t.Errorf("a container that wants more than its limit was throttled %f times, %t", v, ok)
	}
	if v, ok := value(got["container_spec_cpu_quota"], spin); !ok || v != 20000 {
		n.t.Errorf("quota %f, %t", v, ok)
	}
	if v, ok := value(got["container_spec_memory_limit_bytes"], map[string]string{"pod": "memory-" + n.NodeName, "container": "main"}); !ok || v != 64*mib {
		n.t.Errorf("limit %f, %t", v, ok)
	}
	if _, ok := value(got["container_network_receive_bytes_total"], map[string]string{"pod": "disk-" + n.NodeName, "interface": "eth0"}); !ok {
		n.t.Error("no network of a pod")
	}
	if v, ok := value(got["container_memory_working_set_bytes"], map[string]string{"id": "/"}); !ok || v < mib {
		n.t.Errorf("the node's working set is %f, %t", v, ok)
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
		n.t.Errorf("the working set of all pods is %f", all)
	}
}

// testProbes: what becomes of probes is counted.
func (n *node) testProbes() {
	n.until("probes are counted", func() error {
		got := n.metrics("/metrics/probes")
		labels := map[string]string{"pod": "probed-" + n.NodeName, "container": "main", "probe_type": "Liveness", "result": "successful"}
		if v, ok := value(got["prober_probe_total"], labels); !ok || v < 2 {
			return fmt.Errorf("%f, %t", v, ok)
		}
		if got["prober_probe_duration_seconds"] == nil {
			return fmt.Errorf("no durations")
		}
		return nil
	})
}
