package main

import (
	"strings"
	"testing"
)

// TestScripts: the maintainer scripts on machines that are not as usual.
func TestScripts(t *testing.T) {
	debs := t.TempDir()
	stubPackage(t, debs, "v1.0.0")
	stubPackage(t, debs, "v1.1.0")
	for name, tests := range map[string][]func(*machine){
		"mounts": {ownPartitions, mountsWithSpaces}, "masked": {maskedMeanwhile, masked},
		"runtime":       {whichRuntime, runtimeRestarts},
		"configuration": {emptyConfig, syncedConfig}, "what is printed": {runtimeRemoved, logindLimit, copiedUnit},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, debs)
			for _, test := range tests {
				test(m)
				m.sh("dpkg --purge edgecore; rm -f /etc/systemd/system/edgecore.service /end-pods-fails")
			}
		})
	}
}

// says fails unless an output has a text.
func (m *machine) says(what, output, want string) {
	m.t.Helper()
	if !strings.Contains(output, want) {
		m.t.Errorf("%s says, want %q:\n%s", what, want, output)
	}
}

// ownPartitions: folders that are mount points are emptied by a purge, which does not fail.
func ownPartitions(m *machine) {
	m.sh("mkdir -p /var/lib/edgecore /etc/edgecore && mount -t tmpfs tmpfs /var/lib/edgecore && mount -t tmpfs tmpfs " +
		"/etc/edgecore")
	m.dpkg("-i /packages/v1.0.0.deb")
	m.sh("echo rows >/var/lib/edgecore/edgecore.db; mkdir -p /var/lib/edgecore/a/b; touch /var/lib/edgecore/.hidden")
	printed, _ := m.dpkg("--purge edgecore")
	if strings.Contains(printed, "exit status") {
		m.t.Errorf("purging fails, want it to end well:\n%s", printed)
	}
	m.says("purging", printed, "/var/lib/edgecore was emptied, and stays: it is a mount point")
	m.expect("find /var/lib/edgecore /etc/edgecore -mindepth 1; dpkg-query -W edgecore 2>/dev/null", "exit status 1")
	m.sh("umount /var/lib/edgecore /etc/edgecore")
}

// mountsWithSpaces: what is mounted in a folder that pods have left is not deleted, whatever its name and its file
// system.
func mountsWithSpaces(m *machine) {
	m.dpkg("-i /packages/v1.0.0.deb")
	m.sh("mkdir -p /srv '/var/lib/kubelet/pods/1 2/volumes/v 1' && touch /srv/data && mount --bind /srv " +
		"'/var/lib/kubelet/pods/1 2/volumes/v 1'")
	m.write("/left", "/var/lib/kubelet/pods/1 2\n/var/lib/kubelet/pods/\n")
	printed, _ := m.dpkg("--purge edgecore")
	m.says("purging", printed, "/var/lib/kubelet/pods/1 2 stays: something is mounted in it")
	m.expect("ls /srv/data", "/srv/data")
	m.sh("umount '/var/lib/kubelet/pods/1 2/volumes/v 1'; rm -rf /srv/data /var/lib/kubelet /left")
}

// masked: a service that is masked before the package comes is not started, and a removal ends its pods all the same.
func masked(m *machine) {
	m.sh("ln -s /dev/null /etc/systemd/system/edgecore.service")
	printed, calls := m.dpkg("-i /packages/v1.0.0.deb")
	if calls != "systemctl --system daemon-reload" {
		m.t.Errorf("calls of installing = %q, want %q", calls, "systemctl --system daemon-reload")
	}
	m.says("installing", printed, "edgecore.service is masked, and is not started")
	m.expect("readlink /etc/systemd/system/edgecore.service", "/dev/null")
	removalEndsPods(m)
}

// maskedMeanwhile: so is one that is masked later, on which pods may run.
func maskedMeanwhile(m *machine) {
	m.dpkg("-i /packages/v1.0.0.deb")
	m.sh("ln -sf /dev/null /etc/systemd/system/edgecore.service")
	printed, calls := m.dpkg("-i /packages/v1.1.0.deb")
	if calls != "systemctl --system daemon-reload" {
		m.t.Errorf("calls of upgrading = %q, want %q", calls, "systemctl --system daemon-reload")
	}
	m.says("upgrading", printed, "edgecore.service is masked, and is not started")
	removalEndsPods(m)
}

func removalEndsPods(m *machine) {
	m.t.Helper()
	_, calls := m.dpkg("--remove edgecore")
	want := "systemctl stop edgecore.service\nedgecore end-pods --left-overs /var/lib/edgecore/left-overs --within " +
		"2m --kill\nsystemctl --system daemon-reload"
	if calls != want {
		m.t.Errorf("calls of removing = %q, want %q", calls, want)
	}
}

// emptyConfig: what a power cut left empty is made again, and what someone has written stays.
func emptyConfig(m *machine) {
	m.sh("mkdir -p /etc/edgecore; : >/etc/edgecore/edgecore.yaml; echo half >/etc/edgecore/edgecore.yaml.new")
	m.dpkg("-i /packages/v1.0.0.deb")
	m.expect("cmp /etc/edgecore/edgecore.yaml /usr/share/edgecore/edgecore.yaml; ls /etc/edgecore; stat -c %a "+
		"/etc/edgecore/edgecore.yaml",
		"edgecore.yaml\nmanifests\n600")
	m.sh("echo '# mine' >/etc/edgecore/edgecore.yaml")
	m.dpkg("-i /packages/v1.1.0.deb")
	m.expect("cat /etc/edgecore/edgecore.yaml", "# mine")
}

// syncedConfig: the configuration is on the disk before it has its name.
func syncedConfig(m *machine) {
	m.write("/stubs/sync", "#!/bin/sh\necho \"sync $*: $(ls /etc/edgecore | tr '\\n' ' ')\" >>/syncs\n")
	m.sh("chmod +x /stubs/sync")
	m.dpkg("-i /packages/v1.0.0.deb")
	m.expect("cat /syncs", "sync /etc/edgecore/edgecore.yaml.new: edgecore.yaml.new manifests \nsync /etc/edgecore: "+
		"edgecore.yaml manifests")
}

// whichRuntime: the configuration names the runtime that is there.
func whichRuntime(m *machine) {
	const show = "sed -n 's/^ *\\(containerRuntimeEndpoint\\|cgroupDriver\\): //p' /etc/edgecore/edgecore.yaml; " +
		"diff /usr/share/edgecore/edgecore.yaml /etc/edgecore/edgecore.yaml | grep -c '^>'; dpkg --purge edgecore " +
		">/dev/null 2>&1"
	const containerd, crio = "unix:///run/containerd/containerd.sock", "unix:///run/crio/crio.sock"
	m.sh("rm -rf /run/containerd /run/crio /etc/crio; for d in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin; do " +
		"rm -f $d/containerd $d/crio; done; mkdir -p /run/containerd /run/crio /etc/crio/crio.conf.d")
	for _, c := range []struct{ what, prepare, want string }{
		{"none", "true", containerd + "\ncgroupfs\n0"},
		{"CRI-O, installed", "printf '#!/bin/sh\\n' >/usr/bin/crio; chmod +x /usr/bin/crio", crio + "\nsystemd\n2"},
		{
			"CRI-O with cgroupfs", "echo ' cgroup_manager = \"cgroupfs\"' >/etc/crio/crio.conf.d/10-x.conf",
			crio + "\ncgroupfs\n1",
		},
		{
			"both, CRI-O runs", "cp /usr/bin/crio /usr/bin/containerd; " + socket("/run/crio/crio.sock"),
			crio + "\ncgroupfs\n1",
		},
		{"both run", socket("/run/containerd/containerd.sock"), containerd + "\ncgroupfs\n0"},
		{"both, containerd runs", "rm /run/crio/crio.sock", containerd + "\ncgroupfs\n0"},
	} {
		m.sh(c.prepare)
		m.dpkg("-i /packages/v1.0.0.deb")
		if got := strings.TrimSuffix(m.sh(show), "\nexit status 1"); got != c.want {
			m.t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// socket is a command that makes a socket.
func socket(path string) string {
	return "perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Type=>SOCK_STREAM(),Local=>\"" + path +
		"\",Listen=>1) or die'"
}

// runtimeRemoved: pods that nobody could end are told of, with what ends them, and the package goes.
func runtimeRemoved(m *machine) {
	m.dpkg("-i /packages/v1.0.0.deb")
	m.sh("touch /end-pods-fails")
	printed, calls := m.dpkg("--remove edgecore")
	m.says("removing", printed, "a restart of the device does")
	m.says("calls", calls, "end-pods --left-overs /var/lib/edgecore/left-overs --within 2m --kill")
	m.expect("ls /usr/bin/edgecore 2>/dev/null", "exit status 2")
}

// copiedUnit: what preinst says is what it does.
func copiedUnit(m *machine) {
	m.write("/usr/lib/systemd/system/edgecore.service", "[Service]\nExecStart=/usr/local/bin/edgecore\n")
	printed, _ := m.dpkg("-i /packages/v1.0.0.deb")
	m.says("installing", printed, "edgecore: copied /usr/lib/systemd/system/edgecore.service, which no package "+
		"owns, to /etc/systemd/system/edgecore.service")
}

// logindLimit: what the agent raised goes, and nothing else.
func logindLimit(m *machine) {
	m.dpkg("-i /packages/v1.0.0.deb")
	const dir = "/run/systemd/logind.conf.d"
	m.sh("mkdir -p " + dir + "; touch " + dir + "/99-edgecore.conf " + dir + "/mine.conf")
	m.dpkg("--remove edgecore")
	m.expect("ls "+dir, "mine.conf")
	m.sh("rm " + dir + "/mine.conf; touch " + dir + "/99-edgecore.conf")
	m.dpkg("--purge edgecore")
	m.expect("ls -d "+dir+" 2>/dev/null", "exit status 2")
}
