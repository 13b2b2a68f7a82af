package stats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/storage/csi"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// machine is a node of files, with a runtime that says what a test wants.
type machine struct {
	t    testing.TB
	dir  string
	pods []*v1.Pod
	// asked counts the calls of the runtime, read those of Pods.
	asked, read atomic.Int32
	stats       []*runtimeapi.ContainerStats
	err         error
	measured    map[types.UID]int
	unified     bool
}

func newMachine(t testing.TB) (*machine, *Stats) {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), measured: map[types.UID]int{}, unified: true}
	m.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nAnonPages: 300 kB\nCached: "+
		"200 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n")
	m.write("proc/stat", "cpu  100 0 0 0 0 0 0 0\ncpu0 0\ncpu1 0\nbtime 1700000000\n")
	m.write("proc/loadavg", "0 0 0 1/135 1\n")
	m.write("proc/sys/kernel/pid_max", "4194304\n")
	m.write("proc/sys/kernel/threads-max", "15000\n")
	m.write("proc/net/dev", netDev)
	s := New(Options{
		System: v1.NodeSystemInfo{
			BootID:        "boot-1",
			MachineID:     "machine-1",
			SystemUUID:    "system-1",
			KernelVersion: "6.1",
			OSImage:       "Debian",
		},
		NodeName:   "node1",
		RootDir:    m.path("root"),
		LogsDir:    m.path("logs"),
		Proc:       m.path("proc"),
		Pods:       func() []*v1.Pod { m.read.Add(1); return append([]*v1.Pod(nil), m.pods...) },
		Runtime:    m,
		Images:     m,
		PodCgroup:  func(pod *v1.Pod) (cgroups.Dirs, bool) { return m.cgroup("kubepods/pod" + string(pod.UID)), true },
		PodsCgroup: func() (cgroups.Dirs, bool) { return m.cgroup("kubepods"), true },
		Volumes: func(_ context.Context, pod *v1.Pod) ([]volume.Measured, error) {
			m.measured[pod.UID]++
			return []volume.Measured{
				{Name: "data", Dir: m.dir, Local: true, Size: volume.Size{Bytes: 4096, Inodes: 2}},
				{Name: "token", Dir: m.dir, Size: volume.Size{Bytes: 100, Inodes: 1}},
			}, nil
		},
		LogDir: func(pod *v1.Pod) string { return m.path("logs/" + pod.Name) },
		Files: func(pod *v1.Pod) []string {
			return []string{m.path("hosts/" + pod.Name), m.path("messages/" + pod.Name)}
		},
		Claims: func(context.Context) []csi.Usage {
			return []csi.Usage{{
				PodUID:    "uid-a",
				Pod:       types.NamespacedName{Namespace: "default", Name: "a"},
				Name:      "pv1",
				Claim:     "claim",
				Capacity:  100,
				Available: 60,
				Used:      40,
			}}
		},
	})
	return m, s
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(name, text string) {
	m.t.Helper()
	path := m.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) cgroup(path string) cgroups.Dirs {
	if m.unified {
		return cgroups.Dirs{Path: "/" + path, Unified: m.path("cgroup/" + path)}
	}
	d := cgroups.Dirs{Path: "/" + path, Of: map[string]string{}}
	for _, c := range []string{"cpu", "cpuacct", "memory", "pids", "blkio"} {
		d.Of[c] = m.path("cgroup/" + c + "/" + path)
	}
	return d
}

func (m *machine) ListContainerStats(
	ctx context.Context, _ *runtimeapi.ListContainerStatsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListContainerStatsResponse, error) {
	m.asked.Add(1)
	if m.err != nil {
		return nil, m.err
	}
	return &runtimeapi.ListContainerStatsResponse{Stats: m.stats}, ctx.Err()
}

func (m *machine) ImageFsInfo(
	context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption,
) (*runtimeapi.ImageFsInfoResponse, error) {
	if m.err != nil {
		return nil, m.err
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: m.dir}, UsedBytes: &runtimeapi.UInt64Value{Value: 7000},
		InodesUsed: &runtimeapi.UInt64Value{Value: 70},
	}}}, nil
}

// pod is one with a running container "main" whose id is that of the pod with "-id".
func (m *machine) pod(name string) *v1.Pod {
	started := metav1.NewTime(time.Unix(1700000100, 0))
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "main"}},
			Volumes: []v1.Volume{
				{
					Name: "disk", VolumeSource: v1.VolumeSource{
						PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
					},
				},
			},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning, StartTime: &started, ContainerStatuses: []v1.ContainerStatus{{
			Name:        "main",
			Image:       "demo:1",
			ContainerID: "containerd://" + name + "-id",
			State:       v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: started}},
		}}},
	}
	m.pods = append(m.pods, p)
	return p
}

// uses writes the files of a unified cgroup.
func (m *machine) uses(path string, cpuMicros, memory, inactive string) {
	path = "cgroup/" + path + "/"
	m.write(path+"cpu.stat",
		"usage_usec "+cpuMicros+"\nuser_usec 1\nnr_periods 5\nnr_throttled 2\nthrottled_usec 3000\n")
	m.write(path+"memory.current", memory+"\n")
	m.write(path+"memory.stat", "anon 10\nfile 20\ninactive_file "+inactive+"\npgfault 7\npgmajfault 1\n")
	m.write(path+"memory.max", "max\n")
	m.write(path+"memory.swap.current", "3\n")
	m.write(path+"pids.current", "4\n")
	m.write(path+"memory.pressure",
		"some avg10=0.50 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=4\n")
}

func (m *machine) running(name, cpuMicros string) {
	m.uses("kubepods/poduid-"+name, cpuMicros, "5000", "1000")
	m.uses("kubepods/poduid-"+name+"/"+name+"-id", cpuMicros, "4000", "1000")
	m.write("cgroup/kubepods/poduid-"+name+"/"+name+"-id/memory.max", "10000\n")
}

func TestNode(t *testing.T) {
	m, s := newMachine(t)
	m.uses("kubepods", "1000", "9000", "1000")
	got, err := s.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := NodeUsage{
		Memory: Memory{
			CapacityBytes:   1000 << 10,
			AvailableBytes:  500 << 10,
			WorkingSetBytes: 500 << 10,
			SwapTotalBytes:  50 << 10,
			SwapFreeBytes:   20 << 10,
		},
		PodsWorkingSet: 8000,
		PodsKnown:      true,
		MaxPIDs:        15000,
		RunningPIDs:    135,
	}
	if !got.NodeFS.Known || got.NodeFS.CapacityBytes == 0 || got.NodeFS.Device == 0 {
		t.Errorf("file system of the node: %+v, want it known, with a size and a device", got.NodeFS)
	}
	if !got.ImageFS.Known || got.ImageFS.UsedBytes != 7000 || got.ImageFS.UsedInodes != 70 ||
		got.ImageFS.Device != got.NodeFS.Device || got.ImageFS != got.ContainerFS {
		t.Errorf("file systems of images and of containers: %+v, %+v, want both with 7000 bytes and 70 inodes",
			got.ImageFS, got.ContainerFS)
	}
	want.Time, want.NodeFS, want.ImageFS, want.ContainerFS = got.Time, got.NodeFS, got.ImageFS, got.ContainerFS
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadSelf(t *testing.T) {
	m, _ := newMachine(t)
	m.write("proc/self/status", "Name:\tedgecore\nVmRSS:\t   30124 kB\nRssAnon:\t    9000 kB\nThreads:\t12\n")
	got := readSelf(m.path("proc"))
	if got.cpu == nil || *got.cpu == 0 || *got.workingSet != 30124<<10 || *got.rss != 9000<<10 || *got.processes != 12 {
		t.Errorf("readSelf() = %+v, want CPU time, 30124 KiB working set, 9000 KiB RSS and 12 threads", got)
	}
}

func TestNodeWhoseRuntimeIsDown(t *testing.T) {
	m, s := newMachine(t)
	m.err = errors.New("connection refused")
	got, err := s.Node(t.Context())
	if err != nil || got.ImageFS.Known || got.ContainerFS.Known || !got.NodeFS.Known || got.Memory.CapacityBytes == 0 ||
		got.PodsKnown {
		t.Errorf("Node() = %+v, %v; want the node's own measures only", got, err)
	}
	m.write("proc/meminfo", "nothing\n")
	s.room.forget()
	if _, err := s.Node(t.Context()); err == nil || !strings.Contains(err.Error(), "meminfo") {
		t.Errorf("without meminfo: %v, want an error with \"meminfo\"", err)
	}
}

func TestPods(t *testing.T) {
	m, s := newMachine(t)
	m.pod("a")
	m.running("a", "1000")
	done := m.pod("done")
	done.Status.Phase = v1.PodSucceeded
	m.write("logs/a/main/0.log", strings.Repeat("x", 5000))
	m.stats = []*runtimeapi.ContainerStats{
		{
			Attributes: &runtimeapi.ContainerAttributes{
				Id: "a-id", Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
				Labels: map[string]string{"io.kubernetes.pod.uid": "uid-a"},
			},
			WritableLayer: &runtimeapi.FilesystemUsage{
				UsedBytes: &runtimeapi.UInt64Value{Value: 300}, InodesUsed: &runtimeapi.UInt64Value{Value: 3},
			},
		},
	}
	got, err := s.PodsMemory(t.Context())
	want := []PodUsage{{
		UID:              "uid-a",
		Namespace:        "default",
		Name:             "a",
		Known:            true,
		MemoryWorkingSet: 4000,
		Processes:        4,
		Containers:       map[string]uint64{"main": 3000},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v (-want +got):\n%s", err, diff)
	}
	if m.asked.Load() != 0 || len(m.measured) != 0 {
		t.Errorf("memory alone asked the runtime %d times and measured %v, want 0, none", m.asked.Load(), m.measured)
	}
	if got, err = s.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	want[0].DiskKnown, want[0].DiskTime = true, got[0].DiskTime
	want[0].Rootfs, want[0].Logs, want[0].Volumes = Disk{300, 3}, got[0].Logs, Disk{4096, 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if logs := got[0].Logs; logs.Bytes < 5000 || logs.Inodes != 2 {
		t.Errorf("logs %+v; want those of a folder and a file of 5000 bytes", logs)
	}
	if total := got[0].Total(); total.Inodes != 7 {
		t.Errorf("in all %+v, want 7", total)
	}
}

// On cgroup v1 the figures lie in one hierarchy for each controller.
func TestPodsOfSeveralHierarchies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMachine(t)
		m.unified = false
		m.pod("a")
		for _, path := range []string{"kubepods/poduid-a", "kubepods/poduid-a/a-id"} {
			m.write("cgroup/cpuacct/"+path+"/cpuacct.usage", "5000000\n")
			m.write("cgroup/memory/"+path+"/memory.usage_in_bytes", "5000\n")
			m.write("cgroup/memory/"+path+"/memory.stat",
				"rss 1\ntotal_inactive_file 2000\ntotal_rss 100\ntotal_swap 9\n")
			m.write("cgroup/memory/"+path+"/memory.limit_in_bytes", "9223372036854771712\n")
			m.write("cgroup/pids/"+path+"/pids.current", "2\n")
		}
		got, err := s.PodsMemory(t.Context())
		want := []PodUsage{{
			UID:              "uid-a",
			Namespace:        "default",
			Name:             "a",
			Known:            true,
			MemoryWorkingSet: 3000,
			Processes:        2,
			Containers:       map[string]uint64{"main": 3000},
		}}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
		summary, err := s.Summary(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		c := summary.Pods[0].Containers[0]
		if *c.CPU.UsageCoreNanoSeconds != 5000000 || c.Memory.AvailableBytes != nil || *c.Memory.RSSBytes != 100 ||
			*c.Swap.SwapUsageBytes != 9 {
			t.Errorf("container %+v %+v %+v, want 5000000, nil, 100, 9", c.CPU, c.Memory, c.Swap)
		}
	})
}

// A container without a cgroup on the host, as in a virtual machine, has what the runtime says.
func TestPodsWithoutCgroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMachine(t)
		s.opts.PodCgroup = nil
		m.pod("a")
		m.pod("silent")
		value := func(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }
		m.stats = []*runtimeapi.ContainerStats{
			{
				Attributes: &runtimeapi.ContainerAttributes{Id: "a-id"},
				Cpu:        &runtimeapi.CpuUsage{UsageCoreNanoSeconds: value(77)},
				Memory:     &runtimeapi.MemoryUsage{WorkingSetBytes: value(600), AvailableBytes: value(400)},
			},
		}
		got, err := s.PodsMemory(t.Context())
		want := []PodUsage{{UID: "uid-a", Namespace: "default", Name: "a", Known: true, MemoryWorkingSet: 600,
			Containers: map[string]uint64{"main": 600}}, {UID: "uid-silent", Namespace: "default", Name: "silent"}}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
		summary, err := s.Summary(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		if mem := summary.Pods[0].Containers[0].Memory; *mem.AvailableBytes != 400 || *mem.UsageBytes != 600 {
			t.Errorf("memory %+v, want 400, 600", mem)
		}
	})
}

func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMachine(t)
		m.pod("a")
		m.running("a", "1000")
		m.write("cgroup/kubepods/poduid-a/pause/cgroup.procs", "17\n18\n")
		m.write("proc/17/net/dev", strings.Replace(netDev, "wlan0", "net1", 1))
		pending := m.pod("pending")
		pending.Status.ContainerStatuses = nil
		firstSummary(t, m, s)
		got, err := s.Summary(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if got.Node.NodeName != "node1" || *got.Node.Memory.AvailableBytes != 500<<10 ||
			*got.Node.Memory.RSSBytes != 300<<10 || *got.Node.CPU.UsageCoreNanoSeconds != 1e9 ||
			got.Node.CPU.UsageNanoCores == nil {
			t.Errorf("node %+v %+v, want 500 KiB available, 300 KiB RSS, 1 s of CPU and its rate",
				got.Node.Memory, got.Node.CPU)
		}
		if *got.Node.Rlimit.MaxPID != 15000 || *got.Node.Rlimit.NumOfRunningProcesses != 135 ||
			*got.Node.Swap.SwapUsageBytes != 30<<10 {
			t.Errorf("node %+v %+v, want 135 of 15000 processes and 30 KiB of swap", got.Node.Rlimit, got.Node.Swap)
		}
		if fs := got.Node.Fs; *fs.CapacityBytes == 0 || *fs.UsedBytes != *fs.CapacityBytes-*fs.AvailableBytes ||
			*got.Node.Runtime.ImageFs.UsedBytes != 7000 || got.Node.Runtime.ContainerFs == nil {
			t.Errorf("file systems %+v %+v, want all that is not available to be used, and 7000 bytes of images",
				fs, got.Node.Runtime)
		}
		if len(got.Pods) != 1 {
			t.Fatalf("%d pods; the one that has not begun uses nothing, want one", len(got.Pods))
		}
		p := got.Pods[0]
		if diff := cmp.Diff(statsapi.PodReference{Name: "a", Namespace: "default", UID: "uid-a"},
			p.PodRef); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if *p.Memory.WorkingSetBytes != 4000 || p.Memory.AvailableBytes != nil || *p.ProcessStats.ProcessCount != 4 ||
			p.Memory.PSI.Some.Avg10 != .5 || *p.Memory.MajorPageFaults != 1 {
			t.Errorf("pod %+v, want 4000, nil, 4, %v, 1", p.Memory, .5)
		}
		if p.Network.Name != "eth0" || *p.Network.RxBytes != 11 || len(p.Network.Interfaces) != 2 {
			t.Errorf("network %+v, want \"eth0\", 11, 2 of them", p.Network)
		}
		c := p.Containers[0]
		if c.Name != "main" || *c.Memory.WorkingSetBytes != 3000 || *c.Memory.AvailableBytes != 7000 ||
			c.StartTime.Unix() != 1700000100 || *c.Logs.UsedBytes != 0 || *c.Rootfs.CapacityBytes == 0 {
			t.Errorf("container %+v, want main with 3000 bytes in use and 7000 available", c)
		}
		if *p.EphemeralStorage.UsedBytes != 4096 || *p.EphemeralStorage.InodesUsed != 2 {
			t.Errorf("ephemeral storage %d bytes, %d inodes; what lies in memory is not on the disk; want 4096, 2",
				*p.EphemeralStorage.UsedBytes, *p.EphemeralStorage.InodesUsed)
		}
		var names []string
		for _, v := range p.VolumeStats {
			names = append(names, v.Name)
		}
		if diff := cmp.Diff([]string{"data", "token", "disk"}, names); diff != "" ||
			p.VolumeStats[2].PVCRef.Name != "claim" || *p.VolumeStats[2].UsedBytes != 40 {
			t.Errorf("volumes = %+v, want 40 bytes used of claim; names (-want +got):\n%s", p.VolumeStats, diff)
		}
		if p.VolumeStats[0].CapacityBytes == nil {
			t.Errorf("volume = %+v, want the capacity of its file system", p.VolumeStats[0])
		}
	})
}

// firstSummary shows that a first summary samples twice, and has usages.
func firstSummary(t *testing.T, m *machine, s *Stats) {
	t.Helper()
	got, err := s.Summary(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if reads := m.read.Load(); reads != 2 {
		t.Errorf("the first summary sampled %d times, want 2", reads)
	}
	c := got.Pods[0].Containers[0]
	if c.CPU.UsageNanoCores == nil || got.Node.CPU.UsageNanoCores == nil || got.Pods[0].CPU.UsageNanoCores == nil {
		t.Errorf("CPU in the first summary: container %+v, node %+v, pod %+v, want UsageNanoCores in each",
			c.CPU, got.Node.CPU, got.Pods[0].CPU)
	}
	if c.Rootfs != nil || got.Node.Fs != nil || got.Pods[0].VolumeStats != nil || len(m.measured) > 0 {
		t.Errorf("summary of CPU and memory: rootfs %+v, node %+v, volumes %+v, measured %v, want none of the disk",
			c.Rootfs, got.Node.Fs, got.Pods[0].VolumeStats, m.measured)
	}
}

func TestSamplesAreShared(t *testing.T) {
	m, s := newMachine(t)
	m.pod("a")
	m.running("a", "1000")
	synctest.Test(t, func(t *testing.T) {
		for range 3 {
			if _, err := s.Pods(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// One for the sample, and one for each look at what has to be measured.
		if m.measured["uid-a"] != 1 || m.asked.Load() != 1 {
			t.Errorf("three questions at once: measured %d times, asked the runtime %d times; want 1, 1",
				m.measured["uid-a"], m.asked.Load())
		}
		time.Sleep(diskFresh + time.Second)
		m.running("a", "2000")
		m.write("cgroup/kubepods/poduid-a/memory.current", "7000\n")
		got, err := s.Pods(t.Context())
		if err != nil || got[0].MemoryWorkingSet != 6000 || m.measured["uid-a"] != 2 {
			t.Errorf("later: %+v, %v, measured %d times; want no error, 6000, 2", got, err, m.measured["uid-a"])
		}
		m.pods = nil
		if got, err := s.Pods(t.Context()); err != nil || len(got) != 1 {
			t.Errorf("within a second: %+v, %v; want no error, one", got, err)
		}
		time.Sleep(2 * time.Minute)
		if got, err := s.Pods(t.Context()); err != nil || len(got) != 0 || len(s.disks.of) != 0 ||
			len(s.rates.of) != 0 {
			t.Errorf("what is gone is still there: %+v, %v, %d, %d; want no error, none, none, none",
				got, err, len(s.disks.of), len(s.rates.of))
		}
	})
}

// A disk that is slow to measure is spared, but not where someone has to decide.
func TestSlowDisk(t *testing.T) {
	m, s := newMachine(t)
	m.pod("a")
	m.running("a", "1000")
	quick := s.opts.Volumes
	s.opts.Volumes = func(ctx context.Context, pod *v1.Pod) ([]volume.Measured, error) {
		time.Sleep(2 * time.Second)
		return quick(ctx, pod)
	}
	synctest.Test(t, func(t *testing.T) {
		for _, step := range []struct {
			after    time.Duration
			urgent   bool
			measured int
		}{
			{0, false, 1}, {100 * time.Second, false, 1}, {0, true, 2}, {5 * time.Second, true, 2},
			{6 * time.Second, true, 3}, {199 * time.Second, false, 3}, {2 * time.Second, false, 4},
		} {
			time.Sleep(step.after)
			got, err := s.measure(t.Context(), step.urgent)
			if err != nil || len(got) != 1 || m.measured["uid-a"] != step.measured {
				t.Errorf("%v later, urgent %t: measured %d times, want %d; %v", step.after, step.urgent,
					m.measured["uid-a"], step.measured, err)
			}
		}
		// A caller that cannot wait so long gets what was measured before.
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := s.measure(ctx, false); !errors.Is(err, context.DeadlineExceeded) ||
			got["uid-a"].local().Bytes != 4096 {
			t.Errorf("measure() = %+v, %v; want the deadline's error and 4096 bytes of uid-a", got, err)
		}
	})
}

// TestUnreadableVolume: a pod on a worn disk is measured as far as it can be, and keeps no other pod from it.
func TestUnreadableVolume(t *testing.T) {
	m, s := newMachine(t)
	m.pod("a")
	m.pod("b")
	quick := s.opts.Volumes
	s.opts.Volumes = func(ctx context.Context, pod *v1.Pod) ([]volume.Measured, error) {
		list, err := quick(ctx, pod)
		if pod.Name == "a" {
			list[0].Size, err = volume.Size{Bytes: 512, Inodes: 1}, unix.EIO
		}
		return list, err
	}
	synctest.Test(t, func(t *testing.T) {
		got, err := s.Pods(t.Context())
		if err != nil || len(got) != 2 || !got[0].DiskKnown || got[0].Volumes.Bytes != 512 || !got[1].DiskKnown ||
			got[1].Volumes.Bytes != 4096 {
			t.Errorf("Pods() = %+v, %v; want 512 bytes of volumes of a, 4096 of b, no error", got, err)
		}
	})
}

// While the runtime says nothing, what it said last holds.
func TestRuntimeGoesSilent(t *testing.T) {
	m, s := newMachine(t)
	m.pod("a")
	m.running("a", "1000")
	m.stats = []*runtimeapi.ContainerStats{
		{
			Attributes: &runtimeapi.ContainerAttributes{
				Id: "a-id", Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
				Labels: map[string]string{"io.kubernetes.pod.uid": "uid-a"},
			},
			WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: 300}},
		},
	}
	synctest.Test(t, func(t *testing.T) {
		if got, err := s.Pods(t.Context()); err != nil || got[0].Rootfs.Bytes != 300 {
			t.Fatalf("Pods() = %+v, %v; want 300 bytes of root file system", got, err)
		}
		m.err = errors.New("connection refused")
		time.Sleep(time.Minute)
		got, err := s.Pods(t.Context())
		if err == nil || len(got) != 1 || got[0].Rootfs.Bytes != 300 || !got[0].DiskKnown ||
			got[0].MemoryWorkingSet != 4000 {
			t.Errorf("Pods() = %+v, %v; want an error, and what was last known of the disk", got, err)
		}
	})
}

func TestRates(t *testing.T) {
	r := rates{of: map[string]*rate{}}
	began := time.Now()
	note := func(after time.Duration, cpu uint64) *uint64 {
		return r.addSample("x", &usage{at: began.Add(after), cpu: &cpu})
	}
	for _, step := range []struct {
		after time.Duration
		cpu   uint64
		want  *uint64
	}{
		{0, 1e9, nil},
		{50 * time.Millisecond, 2e9, nil}, // too soon to mean anything
		{time.Second, 2e9, ptr.To[uint64](1e9)},
		{10 * time.Second, 2e9, ptr.To[uint64](1e8)}, // the next is averaged from here
		{15 * time.Second, 12e9, ptr.To[uint64](2e9)},
		{16 * time.Second, 1e9, nil}, // began again
		{18 * time.Second, 2e9, ptr.To[uint64](5e8)},
		{3 * time.Minute, 3e9, nil}, // too long ago
		{3*time.Minute + time.Second, 3e9, ptr.To[uint64](0)},
	} {
		if diff := cmp.Diff(step.want, note(step.after, step.cpu)); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", step.after, diff)
		}
	}
}

// TestSystemContainers: the summary has the agent and the pods as a whole, and nothing that systemd made.
func TestSystemContainers(t *testing.T) {
	var got []string
	for _, c := range systemContainers(&node{pods: usage{memory: new(uint64)}, agent: usage{memory: new(uint64)}}) {
		got = append(got, c.Name)
	}
	if diff := cmp.Diff([]string{"kubelet", "pods"}, got); diff != "" {
		t.Errorf("system containers (-want +got):\n%s", diff)
	}
}
