package preflight

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/podstate/clock"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// well is a device on which all is well.
func well() *Facts {
	return &Facts{
		Root:   true,
		Kernel: "6.1.0-13-arm64",
		Memory: 512 << 20,
		Runtime: Runtime{
			Endpoint: "unix:///run/containerd/containerd.sock",
			Name:     "containerd",
			Version:  "1.7.2",
			Driver:   "systemd",
		},
		Cgroups: Cgroups{Version: "v2", Driver: "systemd", Systemd: true},
		CNI:     CNI{Asked: true, Dir: "/etc/cni/net.d", Files: []string{"/etc/cni/net.d/10-x.conflist"}},
		Clock:   Clock{Now: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), Synchronized: true},
		Ports:   []Port{{What: "the read-only server", Key: "readOnlyPort", Address: "127.0.0.1:10255"}},
		Disks: []Disk{{
			What:       "pods",
			Path:       "/var/lib/kubelet",
			Size:       8 << 30,
			Free:       4 << 30,
			Inodes:     1000,
			FreeInodes: 900,
		}},
	}
}

// TestChecks: what is wrong has its level, its cause and its remedy, and nothing else is said to be wrong.
func TestChecks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Facts)
		level  Level
		check  string
		// text and remedy are parts of them.
		text, remedy string
	}{
		"well":     {func(*Facts) {}, OK, "", "", ""},
		"not root": {func(f *Facts) { f.Root = false }, Error, "user", "not root", "as root"},
		"old kernel": {func(f *Facts) {
			f.Kernel = "4.19.0"
		}, Warning, "device", "older than 5.3", "newer kernel"},
		"unknown kernel": {func(f *Facts) { f.Kernel = "x" }, OK, "", "", ""},
		"small":          {func(f *Facts) { f.Memory = 128 << 20 }, Warning, "device", "128 MiB", "zram"},
		"no socket": {
			func(f *Facts) {
				f.Runtime.Socket, f.CNI = os.ErrNotExist, CNI{}
			}, Error, "container runtime", "no runtime at /run/containerd/containerd.sock: file does not exist",
			"apt-get install containerd",
		},
		"no CRI v1": {func(f *Facts) {
			f.Runtime.Unknown, f.Runtime.Err, f.CNI = true, errors.New("x"), CNI{}
		}, Error, "container runtime", "does not speak CRI v1", "disabled_plugins"},
		"no answer": {func(f *Facts) {
			f.Runtime.Err, f.CNI = errors.New("deadline"), CNI{}
		}, Error, "container runtime", "does not answer: deadline", "journalctl"},
		"runtime not ready": {
			func(f *Facts) {
				f.Runtime.NotReady = "starting"
			}, Error, "container runtime",
			"containerd 1.7.2 at /run/containerd/containerd.sock says that it is not ready: starting", "journalctl",
		},
		"Raspberry Pi": {func(f *Facts) {
			f.Cgroups.Missing = []string{"memory"}
		}, Warning, "cgroups", "no memory controller: pods run", "cgroup_enable=memory cgroup_memory=1"},
		"no pids": {func(f *Facts) {
			f.Cgroups.Missing = []string{"pids"}
		}, Warning, "cgroups", "no pids controller", "cgroup_enable=pids"},
		"driver": {
			func(f *Facts) {
				f.Cgroups.Driver = "cgroupfs"
			}, Error, "cgroup driver", "cgroupDriver is cgroupfs, and the runtime's is systemd",
			"Set cgroupDriver: systemd",
		},
		"driver not told": {func(f *Facts) { f.Cgroups.Driver, f.Runtime.Driver = "cgroupfs", "" }, OK, "", "",
			""},
		"no systemd": {func(f *Facts) {
			f.Cgroups.Systemd = false
		}, Error, "cgroup driver", "systemd does not run this device", "cgroupDriver: cgroupfs"},
		"no CNI configuration": {
			func(f *Facts) { f.CNI.Files, f.CNI.NotReady = nil, "cni plugin not initialized" },
			Warning, "pod network", "no CNI configuration in /etc/cni/net.d: pods with hostNetwork run",
			"Put one there",
		},
		"no plugin": {
			func(f *Facts) {
				f.CNI.Missing, f.CNI.Bins = []string{"bridge"}, []string{"/opt/cni/bin"}
			}, Warning, "pod network", "10-x.conflist names plugins that are not in /opt/cni/bin: bridge",
			"containernetworking-plugins",
		},
		"bad configuration": {func(f *Facts) {
			f.CNI.Broken = errors.New("no JSON")
		}, Warning, "pod network", "10-x.conflist is invalid: no JSON", "Correct"},
		"network not ready": {func(f *Facts) {
			f.CNI.NotReady = "cni is broken"
		}, Warning, "pod network", "no network for pods: cni is broken", "/etc/cni/net.d"},
		"1970": {func(f *Facts) {
			f.Clock = Clock{
				Now: time.Unix(0, 0), Bound: clock.Bound{Time: time.Unix(1e9, 0), Of: "this program was made"},
			}
		}, Warning, "clock", "not set: it says 1970-01-01T00:00:00Z", "timedatectl"},
		"no time server": {func(f *Facts) { f.Clock.Synchronized = false }, Warning, "clock", "no time server keeps",
			"timedatectl"},
		"port taken": {func(f *Facts) {
			f.Ports[0].Err, f.Ports[0].Holder = errors.New("in use"), "kubelet (pid 7)"
		}, Error, "port of the read-only server", "127.0.0.1:10255 is taken by kubelet (pid 7)", "change readOnlyPort"},
		"address": {func(f *Facts) { f.Ports[0].Err = errors.New("cannot assign requested address") }, Error,
			"port of the read-only server", "cannot be used: cannot assign", "Change address"},
		"the agent runs": {func(f *Facts) { f.Ports[0].Err, f.Ports[0].Own = errors.New("in use"), true }, OK, "", "",
			""},
		"disk full": {func(f *Facts) {
			f.Disks[0].Free = 1 << 20
		}, Error, "disk of pods", "/var/lib/kubelet has 1 MiB of 8192 MiB free: that is not enough", "Make room"},
		"disk low": {func(f *Facts) {
			f.Disks[0].Free = 600 << 20
		}, Warning, "disk of pods", "pods may be evicted", "edgecore images prune"},
		"inodes": {func(f *Facts) {
			f.Disks[0].FreeInodes = 10
		}, Warning, "disk of pods", "10 of 1000 inodes free", "inodes"},
		"no inodes": {func(f *Facts) { f.Disks[0].Inodes, f.Disks[0].FreeInodes = 0, 0 }, OK, "", "", ""},
		"read-only": {func(f *Facts) {
			f.Disks[0].ReadOnly = true
		}, Error, "disk of pods", "is read-only", "remount"},
		"no folder": {func(f *Facts) { f.Disks[0].Err = errors.New("it is no folder") }, Error, "disk of pods",
			"cannot be used: it is no folder", "Make the folder"},
		"no cloud": {func(f *Facts) { f.Cloud = Cloud{true, "192.0.2.1:10000", errors.New("no route")} }, Warning,
			"cloud", "192.0.2.1:10000 cannot be reached: no route. Pods run on", "firewalls"},
		"cloud": {func(f *Facts) { f.Cloud = Cloud{true, "192.0.2.1:10000", nil} }, OK, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := well()
			c.change(f)
			all := Check(f)
			if got := Worst(all); got != c.level {
				t.Errorf("%s, want %s", got, c.level)
			}
			for _, got := range all {
				switch {
				case got.Check == c.check:
					if got.Level == OK || !strings.Contains(got.Text, c.text) ||
						!strings.Contains(got.Remedy, c.remedy) {
						t.Errorf("%+v, want %q and %q in it", got, c.text, c.remedy)
					}
				case got.Level != OK || got.Remedy != "" || got.Text == "":
					t.Errorf("beside it: %+v, want OK with a text and no remedy", got)
				}
			}
		})
	}
}

// TestWhoHasAPort: this process listens, and is found.
func TestWhoHasAPort(t *testing.T) {
	port, err := daemon.FreePort() // which nobody else takes once it is free again
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	p := Port{Address: l.Addr().String()}
	lookAtPort(t.Context(), &p)
	if p.Err == nil || !strings.HasSuffix(p.Holder, fmt.Sprintf("(pid %d)", os.Getpid())) || p.Own {
		t.Errorf("a taken port is %+v, want an error and this process as its holder", p)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	free := Port{Address: p.Address}
	if lookAtPort(t.Context(), &free); free.Err != nil || free.Holder != "" {
		t.Errorf("a free port is %+v, want no error and no holder", free)
	}
	nowhere := Port{Address: "192.0.2.1:1"}
	if lookAtPort(t.Context(), &nowhere); nowhere.Err == nil || nowhere.Holder != "" {
		t.Errorf("an address of another machine is %+v, want an error and no holder", nowhere)
	}
}

func TestDisks(t *testing.T) {
	dir := t.TempDir()
	later := Disk{Path: filepath.Join(dir, "not", "there", "yet")}
	if lookAtDisk(&later); later.Err != nil || later.Size <= 0 || later.Free <= 0 || later.ReadOnly {
		t.Errorf("a disk of a missing folder is %+v, want its size and what is free of it", later)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		d := Disk{Path: path}
		if lookAtDisk(&d); d.Err == nil {
			t.Errorf("a disk of what is no folder is %+v, want an error", d)
		}
	}
	frozen := Disk{Path: "/sys"} // a file system that nobody writes to, or that has no room
	if lookAtDisk(&frozen); len(disks([]Disk{frozen})) != 1 || disks([]Disk{frozen})[0].Level != Error {
		t.Errorf("/sys is %+v, want one finding, an error", frozen)
	}
}

// TestCNIFiles: the first file by name counts, its plugins have to be there.
func TestCNIFiles(t *testing.T) {
	dir, bins := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() CNI {
		c := CNI{Dir: dir, Bins: []string{"/nowhere", bins}}
		lookAtCNI(&c)
		return c
	}
	if c := look(); len(c.Files) != 0 || c.Broken != nil {
		t.Errorf("an empty folder is %+v, want no files, and none broken", c)
	}
	write(filepath.Join(dir, "20-b.conf"), "{")
	write(filepath.Join(dir, "10-a.conflist"),
		`{"plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"},{"type":"../x"}]}`)
	write(filepath.Join(dir, "00-notes.txt"), "")
	write(filepath.Join(bins, "bridge"), "")
	c := look()
	if diff := cmp.Diff([]string{"host-local", "portmap"}, c.Missing); diff != "" || c.Broken != nil ||
		len(c.Files) != 2 {
		t.Errorf("%+v: (-want +got):\n%s", c, diff)
	}
	write(filepath.Join(dir, "05-c.conf"), `{"type":"bridge"}`)
	if c := look(); len(c.Missing) > 0 || c.Broken != nil {
		t.Errorf("a configuration of before is %+v, want nothing missing or broken", c)
	}
	write(filepath.Join(dir, "01-bad.json"), `{"plugins":[]}`)
	if c := look(); c.Broken == nil {
		t.Errorf("a broken configuration is %+v, want it reported", c)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "00-fifo.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := look(); c.Broken == nil || !strings.Contains(c.Broken.Error(), "not a regular file") {
		t.Errorf("a FIFO for a configuration is %+v, want it reported", c)
	}
}

// TestRuntimeConfigs: what the containerds tell.
func TestRuntimeConfigs(t *testing.T) {
	for _, c := range []struct{ text, driver, bins string }{
		{"", "", ""}, {"[]", "", ""},
		{
			`{"cni":{"binDir":"/opt/cni/bin","confDir":"/etc/cni/net.d"},"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`, "systemd", "/opt/cni/bin",
		},
		{`{"cni":{"binDirs":["/a","/b"]},"containerd":{"runtimes":{"runc":{"options":{}}}}}`, "cgroupfs", "/a /b"},
		{`{"containerd":{"defaultRuntimeName":"kata","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`, "", ""},
	} {
		got := parseConfig(c.text)
		if got.driver() != c.driver || strings.Join(got.CNI.bins(), " ") != c.bins {
			t.Errorf("%s: %q %q, want %v, %v", c.text, got.driver(), got.CNI.bins(), c.driver, c.bins)
		}
	}
}

func FuzzHostile(f *testing.F) {
	f.Add(`{"plugins":[{"type":"bridge"}]}`,
		"  0: 0100007F:280F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1",
		uint16(10255))
	for _, head := range []string{`{"plugins":`, `{"containerd":{"runtimes":`, `{"cni":{"binDirs":`} {
		for _, text := range membound.JSON(head, strings.Repeat("}", strings.Count(head, "{")), 64<<10) {
			f.Add(text, strings.Repeat("a ", 10_000), uint16(1))
		}
	}
	f.Fuzz(func(t *testing.T, config, line string, port uint16) {
		// A plugin or a runtime takes 3 bytes there and 50 in a list or a map that grows.
		limit := membound.Linear(len(config)+len(line), 256)
		membound.Check(t, limit, func() {
			names, err := cniPlugins([]byte(config))
			if len(names) > 2*maxPlugins {
				t.Errorf("cniPlugins() names %d programs, want at most %d", len(names), 2*maxPlugins)
			}
			for _, n := range names {
				if err == nil && (n == "" || strings.Contains(n, "/")) {
					t.Errorf("cniPlugins() names %q, want no empty name and no path", n)
				}
			}
		})
		membound.Check(t, limit, func() { parseConfig(config) })
		membound.Check(t, limit, func() { listens(line, port) })
	})
}

func TestListens(t *testing.T) {
	line := "  0: 0100007F:280F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1"
	if inode, ok := listens(line, 0x280F); !ok || inode != "12345" {
		t.Errorf("listens() = %q, %v; want \"12345\", true", inode, ok)
	}
	for _, other := range []string{strings.Replace(line, " 0A ", " 01 ", 1), "", "  sl  local_address rem_address"} {
		if inode, ok := listens(other, 0x280F); ok {
			t.Errorf("listens(%q) = %q, true, want false", other, inode)
		}
	}
}

// TestRuntimeProblem: what keeps pods from starting names its key and the remedy; what does not is no problem.
func TestRuntimeProblem(t *testing.T) {
	const kubelet = "modules.edged.tailoredKubeletConfig."
	for name, c := range map[string]struct {
		change func(*Facts)
		want   []string
	}{
		"well":       {func(*Facts) {}, nil},
		"no network": {func(f *Facts) { f.CNI.NotReady = "no CNI" }, nil},
		"no socket": {
			func(f *Facts) { f.Runtime.Socket = os.ErrNotExist },
			[]string{kubelet + "containerRuntimeEndpoint: there is no runtime at", ". Install one"},
		},
		"another program": {
			func(f *Facts) { f.Runtime.Err = errors.New("EOF") },
			[]string{kubelet + "containerRuntimeEndpoint: the runtime at", "EOF. See whether"},
		},
		"another driver": {
			func(f *Facts) { f.Cgroups.Driver, f.Runtime.Driver = "cgroupfs", "systemd" },
			[]string{kubelet + "cgroupDriver is cgroupfs, and the runtime's is systemd", "Set cgroupDriver: systemd"},
		},
		"no image service": {
			func(f *Facts) { f.Runtime.ImageEndpoint, f.Runtime.ImagesErr = "unix:///i.sock", errors.New("refused") },
			[]string{kubelet + "imageServiceEndpoint: there is no image service at /i.sock: refused", "Remove the key"},
		},
		"a driver that it does not say": {func(f *Facts) { f.Runtime.Driver = "" }, nil},
	} {
		f := well()
		c.change(f)
		err := runtimeProblem(f)
		if (err != nil) != (c.want != nil) {
			t.Errorf("%s: %v, want an error: %v", name, err, c.want)
		}
		for _, part := range c.want {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q in it", name, err, part)
			}
		}
	}
	if err := RuntimeFor(t.Context(), "unix:///none/cri.sock", "", "cgroupfs"); err == nil ||
		!strings.Contains(err.Error(), "there is no runtime at /none/cri.sock") {
		t.Errorf("RuntimeFor without a socket = %v, want that there is no runtime", err)
	}
}
