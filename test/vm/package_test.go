package vm_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/vm"
)

// awayLimit is how long an upgrade may leave the device without its agent: 5 s, on an emulated processor.
const awayLimit = 50 * time.Second

// everything lists what is on the disk, but for what other programs write: package lists, logs, and the runtime's own.
const everything = `find / -xdev \( -path /var/lib/dpkg -o -path /var/cache -o -path /var/log/journal -o -path /var/lib/containerd -o -path /var/lib/systemd -o -path /var/log/dpkg.log \
  -o -path /var/lib/cni -o -path /etc/systemd/system/multi-user.target.wants/containerd.service -o -path /tmp -o -path /root -o -path /opt -o -path /payload \) -prune -o -print | sort`

// TestPackage: the life of the package on a device. An upgrade leaves the containers alone and its settings as they
// are; what is removed can come back; a purge leaves nothing.
func TestPackage(t *testing.T) {
	payload := packaged(t, vm.AMD64)
	newer, err := vm.NextPackage(t.Context(), payload["edgecore.deb"], t.TempDir(), vm.Next{Version: "+next1"})
	if err != nil {
		t.Fatal(err)
	}
	payload["newer.deb"] = newer
	d := &device{boot(t, vm.Options{Payload: payload}), t}
	d.write(runtimeFiles)
	d.sh("systemctl daemon-reload; systemctl enable --now containerd; ctr -n k8s.io images import /payload/images.tar")
	before := d.sh(everything)

	d.sh("dpkg -i /payload/edgecore.deb 2>&1")
	if out := d.sh("systemd-analyze verify --man=no edgecore.service 2>&1 | grep -i edgecore || true"); out != "" {
		t.Errorf("systemd-analyze verify = %q, want \"\"", out)
	}
	t.Logf("systemd-analyze security: %s", d.sh("systemd-analyze security edgecore.service 2>&1 | tail -1"))
	files := map[string]string{configFile: config("enable: false"), "/etc/edgecore/manifests/a.yaml": manifest("a", ""),
		"/etc/edgecore/manifests/b.yaml": manifest("b", "")}
	d.write(files)
	d.sh("systemctl restart edgecore")
	first := d.all("installed", 2, nil)

	began := time.Now()
	d.sh("DEBIAN_FRONTEND=noninteractive dpkg -i /payload/newer.deb 2>&1")
	away := d.away()
	t.Logf("upgrade: dpkg took %v, and the device was without its agent for %v of it (real machine: a tenth)",
		time.Since(began).Round(100*time.Millisecond), away)
	if away <= 0 || away > awayLimit {
		t.Errorf("the agent was away for %v, want more than 0 and at most %v", away, awayLimit)
	}
	d.all("upgraded", 2, first)
	if got, err := d.ReadFile(t.Context(), configFile); err != nil || string(got) != files[configFile] {
		t.Errorf("%s after the upgrade = %s, %v\nwant %s", configFile, got, err, files[configFile])
	}

	t.Logf("remove says:\n%s", d.sh("dpkg -r edgecore 2>&1"))
	if got := d.sh("pgrep -x edgecore || true; ls /etc/edgecore/edgecore.yaml"); got != configFile {
		t.Errorf("processes and files after the package was removed = %q, want %q", got, configFile)
	}
	d.sh("dpkg -i /payload/newer.deb 2>&1")
	d.all("installed again", 2, nil)

	t.Logf("purge says:\n%s", d.sh("dpkg -P edgecore 2>&1"))
	d.nothingLeft(before)
}

// away is how long the agent was gone between its last end and its start.
func (d *device) away() time.Duration {
	d.t.Helper()
	at := map[string]int{}
	for line := range strings.Lines(
		d.sh("systemctl show -p InactiveEnterTimestampMonotonic -p ActiveEnterTimestampMonotonic edgecore")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		at[name], _ = strconv.Atoi(value) // 0 is looked for by who asks
	}
	return time.Duration(at["ActiveEnterTimestampMonotonic"]-at["InactiveEnterTimestampMonotonic"]) * time.Microsecond
}

// nothingLeft compares the machine with what it was before there was an agent.
func (d *device) nothingLeft(before string) {
	d.t.Helper()
	known := strings.Fields(before)
	for _, path := range strings.Fields(d.sh(everything)) {
		if _, found := slices.BinarySearch(known, path); !found && !slices.Contains(known, path) {
			d.t.Errorf("%s exists after the purge, want it removed", path)
		}
	}
	for command, want := range map[string]string{
		"pgrep -x edgecore || true":                                             "",
		"ctr -n k8s.io tasks ls -q":                                             "",
		"ctr -n k8s.io containers ls -q":                                        "",
		"ls -d /sys/fs/cgroup/kubepods* 2>/dev/null || true":                    "",
		"grep -c -e /var/lib/kubelet -e /var/lib/edgecore /proc/mounts || true": "0",
		"systemctl list-units --all --plain --no-legend edgecore.service | cat": "",
		"ls -d /run/edgecore* 2>/dev/null || true":                              "",
	} {
		if got := d.sh(command); got != want {
			d.t.Errorf("after the purge, %s: %q, want %q", command, got, want)
		}
	}
}

// TestARM64: the same package for another processor. It is installed, runs pods, and runs them again after a restart
// with no network, and after its power was cut.
func TestARM64(t *testing.T) {
	d := newDevice(t, vm.ARM64)
	if got := d.sh("uname -m; dpkg --print-architecture"); got != "aarch64\narm64" {
		t.Errorf("the machine is %q, want aarch64 and arm64", got)
	}
	first := d.running("first start", 0, func(string) bool { return true })
	d.SetNetwork(false)
	d.sh("sync")
	if err := d.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := d.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	cut := d.running("power cut, and no network", 1, func(id string) bool {
		return !slices.Contains(containers(first), id)
	})
	if err := d.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.running("reboot with no network", 2, func(id string) bool { return !slices.Contains(containers(cut), id) })
	t.Logf("%s", d.sh("edgecore --version; edgecore status || true"))
}
