package vm_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

const (
	smallPods = 10
	// The budget of an agent with 30 pods, in KiB.
	budgetRSS, budgetAnon = 36 << 10, 13 << 10
)

// all waits until so many pods run; where same is given, in its containers.
func (d *device) all(what string, n int, same map[string]*v1.Pod) map[string]*v1.Pod {
	d.t.Helper()
	began := time.Now()
	var pods map[string]*v1.Pod
	wait.Until(d.t, what+": the pods to run", func() error {
		var err error
		if pods, err = d.pods(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if len(pods) != n {
			return fmt.Errorf("%s: %d pods, want %d", what, len(pods), n)
		}
		tasks, err := d.Shell(d.t.Context(), "ctr -n k8s.io tasks ls")
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		// Each pod has a sandbox, too.
		if running := strings.Count(tasks, "RUNNING"); running != 2*n {
			return fmt.Errorf("%s: the runtime runs %d tasks, want %d:\n%s", what, running, 2*n, tasks)
		}
		for name, p := range pods {
			if !ready(&p.Status) || !hasTask(tasks, container(&p.Status)) {
				return fmt.Errorf("%s: %s is %s, %+v", what, name, p.Status.Phase, p.Status.ContainerStatuses)
			}
			if same != nil && (same[name] == nil || container(&same[name].Status) != container(&p.Status)) {
				d.t.Fatalf("%s: containers of %s = %+v, want the same as in %+v",
					what, name, p.Status.ContainerStatuses, same[name])
			}
		}
		return nil
	})
	d.t.Logf("%s: %d pods run, after %v", what, n, time.Since(began).Round(100*time.Millisecond))
	return pods
}

// status waits until `edgecore status` says what is wanted.
func (d *device) status(what, want string) {
	d.t.Helper()
	wait.Until(d.t, what+": the status", func() error {
		if out := d.sh("edgecore status 2>&1 || true"); !regexp.MustCompile(want).MatchString(out) {
			return fmt.Errorf("%s: status does not say %q:\n%s", what, want, out)
		}
		return nil
	})
}

// memory is what the agent takes, in KiB.
type memory struct {
	rss, anon, pss int
	// anonGroup, file and kernel are what its cgroup is charged for: pages of the agent itself, of files that it was
	// the first to read or write, and of the kernel on its behalf.
	anonGroup, file, kernel int
}

// memory reads what the agent takes.
func (d *device) memory() memory {
	d.t.Helper()
	out := d.sh("pid=$(systemctl show -P MainPID edgecore); grep -E '^(VmRSS|RssAnon):' /proc/$pid/status; " +
		"grep '^Pss:' /proc/$pid/smaps_rollup; cd /sys/fs/cgroup/system.slice/edgecore.service; " +
		"awk '/^(anon|file|kernel) / {printf \"%s: %d kB\\n\", $1, $2/1024}' memory.stat")
	values := map[string]int{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 {
			values[f[0]], _ = strconv.Atoi(f[1]) // 0 is looked for below
		}
	}
	m := memory{
		rss:       values["VmRSS:"],
		anon:      values["RssAnon:"],
		pss:       values["Pss:"],
		anonGroup: values["anon:"],
		file:      values["file:"],
		kernel:    values["kernel:"],
	}
	for _, n := range []int{m.rss, m.anon, m.pss, m.anonGroup, m.kernel} { // of files it may be charged for none
		if n == 0 {
			d.t.Fatalf("the agent's memory = %q, want no number to be 0, except that of files", out)
		}
	}
	return m
}

func (m memory) String() string {
	mb := func(kb int) float64 { return float64(kb) / 1024 }
	return fmt.Sprintf("RSS %.1f MiB, anonymous %.1f, PSS %.1f; cgroup: anonymous %.1f, files %.1f, kernel %.1f",
		mb(m.rss), mb(m.anon), mb(m.pss), mb(m.anonGroup), mb(m.file), mb(m.kernel))
}

// TestSmallDevice: 512 MB and one processor carry ten pods, and the agent stays within its budget. It starts while the
// disk is full, while the disk takes no writes, and while there is no runtime; no container is restarted for it.
func TestSmallDevice(t *testing.T) {
	files := map[string]string{configFile: config("enable: false")}
	for i := range smallPods {
		name := fmt.Sprintf("pod-%d", i)
		files["/etc/edgecore/manifests/"+name+".yaml"] = manifest(name, "")
	}
	d := install(t, vm.Options{MemoryMB: 512, CPUs: 1, Payload: packaged(t, vm.AMD64)}, files)
	first := d.all("first start", smallPods, nil)

	m := d.memory()
	t.Logf("%d pods: %v; %s MB of memory left", len(first), m, d.sh("free -m | awk '/^Mem/{print $7}'"))
	if max(m.rss, m.pss) > budgetRSS || max(m.anon, m.anonGroup) > budgetAnon {
		t.Errorf("the agent takes %v; want RSS and PSS of %d KiB at most, and anonymous memory of %d", m, budgetRSS,
			budgetAnon)
	}
	first = d.afterRestart()
	d.withoutRuntime(first)
	d.onFullDisk(first)
	d.onReadOnlyDisk(first)
}

// afterRestart restarts containerd. Where making ten pods at once was too much for the processor, containerd 1.6 has
// given a container a shim of its own, as that of the sandbox did not answer in 100 ms; the sandbox is lost when
// containerd is started the next time, and the pod gets another one. From then on there is no reason for a container to
// end.
func (d *device) afterRestart() map[string]*v1.Pod {
	d.sh("systemctl restart containerd")
	return d.all("containerd was restarted", smallPods, nil)
}

// withoutRuntime starts the agent while containerd cannot be.
func (d *device) withoutRuntime(first map[string]*v1.Pod) {
	// Not `mask --now`: stopped after its unit is gone, the service takes the containers with it.
	d.sh("systemctl stop containerd; systemctl mask containerd 2>&1; systemctl restart edgecore; systemctl is-active " +
		"edgecore")
	d.status("no runtime", "RuntimeDown")
	d.sh("systemctl unmask containerd 2>&1; systemctl start containerd")
	d.all("the runtime is there", len(first), first)
}

// onFullDisk starts the agent while the disk has no room at all.
func (d *device) onFullDisk(first map[string]*v1.Pod) {
	// Nobody is to lose a pod for it here: that is another test's subject.
	d.write(map[string]string{
		configFile: config("enable: false") +
			"      evictionHard: {memory.available: 10Mi}\n      imageGCHighThresholdPercent: 100\n",
	})
	d.sh("systemctl stop edgecore; dd if=/dev/zero of=/fill bs=1M 2>/dev/null || true; dd if=/dev/zero bs=4k " +
		"2>/dev/null >> /fill || true; sync")
	if free := d.sh("df --output=avail / | tail -1"); strings.TrimSpace(free) != "0" {
		d.t.Errorf("free space of the disk = %s KB, want 0", free)
	}
	d.sh("systemctl start edgecore; systemctl is-active edgecore")
	d.all("the disk is full", len(first), first)
	d.t.Logf("status while the disk is full:\n%s", d.sh("edgecore status 2>&1 || true"))
	d.sh("rm /fill; sync; systemctl restart edgecore")
	d.all("the disk has room", len(first), first)
}

// onReadOnlyDisk starts the agent on a disk that the kernel has switched to read-only, as it does after errors.
func (d *device) onReadOnlyDisk(first map[string]*v1.Pod) {
	d.sh("sync; echo u > /proc/sysrq-trigger; until ! touch /root/writable 2>/dev/null; do sleep 0.2; done; " +
		"systemctl restart edgecore; systemctl is-active edgecore")
	d.all("the disk is read-only", len(first), first)
	d.status("the disk is read-only", "the disk is read-only")
	d.sh("mount -o remount,rw /; systemctl restart edgecore")
	d.all("the disk takes writes", len(first), first)
	names := slices.Sorted(maps.Keys(first))
	d.t.Logf("the same containers all the time: %v", names)
}
