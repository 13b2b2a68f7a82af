package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// stubProgram stands for edgecore: it notes how it is called, and writes what it is told to have left over.
const stubProgram = `#!/bin/sh
echo "edgecore $*" >>/calls
[ ! -e /end-pods-fails ] || exit 1
[ ! -e /left ] || cp /left "$3"
`

// stubSystemctl stands for systemd's, which does not run here: the service is enabled unless /disabled is there, and
// runs unless /stopped is. The state of containerd.service is what the file /containerd.service holds, and is inactive
// without one; so for crio.service.
const stubSystemctl = `#!/bin/sh
case "$*" in
*--root=*) exec /usr/bin/systemctl "$@" ;;
*is-enabled*) [ -e /disabled ] && echo disabled || echo enabled; exit 0 ;;
"is-active containerd.service" | "is-active crio.service") cat "/$2" 2>/dev/null || echo inactive
  grep -qsx active "/$2"; exit ;;
*is-active*) [ ! -e /stopped ]; exit ;;
esac
echo "systemctl $*" >>/calls
`

// machine is this one with a disk of its own: a shell in which all that is written goes when it ends.
type machine struct {
	t     *testing.T
	in    io.Writer
	out   *bufio.Reader
	calls int
}

func newMachine(t *testing.T, debs string) *machine {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `
		set -e
		mount -t tmpfs tmpfs "$0"
		cd "$0"
		mkdir upper work root
		mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
		mkdir -p root/packages root/written
		mount --bind "$1" root/packages
		mount --bind upper root/written
		mount -t proc proc root/proc
		mount -t devtmpfs devtmpfs root/dev || mount --bind /dev root/dev
		cd root
		mkdir old
		pivot_root . old
		umount -l /old # or the mounts of other tests stay as long as this does
		exec sh`, dir, debs)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Minute
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	m.sh("export PATH=/stubs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin " +
		"DEBIAN_FRONTEND=noninteractive LC_ALL=C")
	m.sh("mkdir -p /stubs /run/systemd/system /etc/containerd && rm -f /usr/sbin/policy-rc.d " +
		"/etc/containerd/config.toml && touch /calls")
	m.write("/stubs/systemctl", stubSystemctl)
	m.sh("chmod +x /stubs/systemctl; dpkg --purge --force-all edgecore 2>/dev/null; find /etc /lib/systemd " +
		"/usr/lib/systemd /var/lib/systemd -name 'edgecore*' -exec rm -rf {} +")
	m.sh("rm -rf /etc/edgecore /var/lib/edgecore /var/lib/kubelet /usr/share/edgecore; rm -f " +
		"/run/systemd/logind.conf.d/99-edgecore.conf; true")
	return m
}

// sh runs a line, and returns what it prints and how it ends, if that is not well.
func (m *machine) sh(line string) string {
	m.t.Helper()
	m.calls++
	mark := fmt.Sprintf("end of call %d: ", m.calls)
	if _, err := fmt.Fprintf(m.in, "{ %s\n} 2>&1 </dev/null; echo \"%s$?\"\n", line, mark); err != nil {
		m.t.Fatal(err)
	}
	var text strings.Builder
	for {
		l, err := m.out.ReadString('\n')
		if err != nil {
			m.t.Fatalf("%s: %v after %s, want the end of the call", line, err, text.String())
		}
		if before, status, ok := strings.Cut(l, mark); ok {
			text.WriteString(before)
			if status != "0\n" {
				fmt.Fprintf(&text, "exit status %s", status)
			}
			return strings.TrimSpace(text.String())
		}
		text.WriteString(l)
	}
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if out := m.sh("mkdir -p " + filepath.Dir(path) + " && cat >" + path + " <<'END OF FILE'\n" + text +
		"END OF FILE\n"); out != "" {
		m.t.Fatalf("unexpected output:\n%s", out)
	}
}

// dpkg runs dpkg, and returns how edgecore and systemctl were called meanwhile.
func (m *machine) dpkg(args string) (printed, calls string) {
	m.t.Helper()
	m.sh(": >/calls")
	printed = m.sh("dpkg --no-triggers " + args)
	return printed, m.sh("cat /calls")
}

// expect compares what a line prints.
func (m *machine) expect(line, want string) {
	m.t.Helper()
	if diff := cmp.Diff(want, m.sh(line)); diff != "" {
		m.t.Errorf("%s (-want +got):\n%s", line, diff)
	}
}

// stubPackage makes a package of the true scripts, unit and configuration, with a program that stands for edgecore.
func stubPackage(t *testing.T, out, version string) {
	t.Helper()
	r := &release{version: version, commit: "abc1234", made: made, source: "../..", out: out, work: t.TempDir()}
	files := tree{
		"usr/bin/edgecore":          {[]byte(stubProgram), 0o755},
		"etc/edgecore/manifests/":   {mode: 0o755},
		"var/lib/edgecore/":         {mode: 0o700},
		"usr/share/man/man8/x.8.gz": {[]byte("x"), 0o644},
	}
	err := errors.Join(
		files.copyFiles("../../deploy/systemd", "usr/lib/systemd/system", "edgecore.service"),
		files.copyFiles("../../"+debianDir, "usr/share/edgecore", "edgecore.yaml"),
		r.describe(files, control{
			Version:      debianVersion(version, made),
			Architecture: "all",
			Release:      version,
			Commit:       "abc1234",
			Date:         made.Format(time.RFC1123Z),
		}),
		r.pack(t.Context(), target{debian: "all"}, files, version+".deb"),
	)
	if err != nil {
		t.Fatal(err)
	}
}

func TestPackage(t *testing.T) {
	debs := t.TempDir()
	stubPackage(t, debs, "v1.0.0")
	stubPackage(t, debs, "v1.1.0")
	again := t.TempDir()
	stubPackage(t, again, "v1.0.0")
	first, second := sums(t, debs), sums(t, again)
	if first["v1.0.0.deb"] != second["v1.0.0.deb"] || first["v1.0.0.deb"] == "" {
		t.Errorf("sums of a package built twice: %q and %q, want the same", first["v1.0.0.deb"], second["v1.0.0.deb"])
	}
	for name, test := range map[string]func(*machine){
		"life": life, "foreign service": foreignService, "unit of no package": unitOfNoPackage,
		"cgroup driver": cgroupDriver, "disabled": disabled, "pods that do not end": podsRunOn,
	} {
		t.Run(name, func(t *testing.T) { test(newMachine(t, debs)) })
	}
}

func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := sumsOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// life is a package's: installed, upgraded, removed, installed again, purged.
func life(m *machine) {
	const present = "find /etc/edgecore /var/lib/edgecore /etc/systemd/system -path '*edgecore*' -printf '%M %p\\n' " +
		"2>/dev/null | sort -k2"
	const everything = "find /written \\( -path /written/var/lib/dpkg -o -path /written/calls -o -name dpkg.log -o " +
		"-type c \\) -prune -o -type d -o -print | sort"
	before := m.sh(everything)
	_, calls := m.dpkg("-i /packages/v1.0.0.deb")
	if want := "systemctl --system daemon-reload\nsystemctl --quiet --system start edgecore.service"; calls != want {
		m.t.Errorf("calls of installing = %q, want %q", calls, want)
	}
	m.expect(present, `drwxr-xr-x /etc/edgecore
-rw------- /etc/edgecore/edgecore.yaml
drwxr-xr-x /etc/edgecore/manifests
lrwxrwxrwx /etc/systemd/system/multi-user.target.wants/edgecore.service
drwx------ /var/lib/edgecore`)
	m.expect("cmp /etc/edgecore/edgecore.yaml /usr/share/edgecore/edgecore.yaml", "")

	m.sh("echo '# a word of mine' >>/etc/edgecore/edgecore.yaml; echo rows >/var/lib/edgecore/edgecore.db")
	printed, calls := m.dpkg("-i /packages/v1.1.0.deb")
	if want := "systemctl --system daemon-reload\nsystemctl --quiet --system restart edgecore.service"; calls != want {
		m.t.Errorf("calls of upgrading = %q, want %q\n%s", calls, want, printed)
	}
	m.expect("tail -1 /etc/edgecore/edgecore.yaml; cat /var/lib/edgecore/edgecore.db", "# a word of mine\nrows")

	m.sh("mkdir -p /var/lib/kubelet/pods/1/volumes '/var/lib/kubelet/pods/2 3' /var/lib/kubelet/others; echo x " +
		">/var/lib/kubelet/pods/1/volumes/data; mkdir -p /run/systemd/logind.conf.d; touch " +
		"/run/systemd/logind.conf.d/99-edgecore.conf")
	m.write("/left", "/var/lib/kubelet/pods/1\n/var/lib/kubelet/pods/2 "+
		"3\n/var/lib/kubelet/pods/\n/var/lib/kubelet/\n/\n//\nrelative/path\n")
	_, calls = m.dpkg("--remove edgecore")
	if want := "systemctl stop edgecore.service\nedgecore end-pods --left-overs /var/lib/edgecore/left-overs " +
		"--within 2m --kill\nsystemctl --system daemon-reload"; calls != want {
		m.t.Errorf("calls of removing = %q, want %q", calls, want)
	}
	m.expect("cat /var/lib/edgecore/edgecore.db /var/lib/kubelet/pods/1/volumes/data; tail -1 "+
		"/etc/edgecore/edgecore.yaml; ls /usr/bin/edgecore /run/systemd/logind.conf.d/99-edgecore.conf",
		"rows\nx\n# a word of mine\nls: cannot access '/usr/bin/edgecore': No such file or directory\nls: cannot "+
			"access '/run/systemd/logind.conf.d/99-edgecore.conf': No such file or directory\nexit status 2")

	if _, calls = m.dpkg("-i /packages/v1.1.0.deb"); !strings.Contains(calls, "start edgecore.service") {
		m.t.Errorf("calls of installing again = %q, want %q among them", calls, "start edgecore.service")
	}
	m.expect("tail -1 /etc/edgecore/edgecore.yaml", "# a word of mine")

	printed, _ = m.dpkg("--purge edgecore")
	m.expect("ls /var/lib/kubelet", "others")
	m.expect("ls -d /etc/edgecore /var/lib/edgecore /usr/share/edgecore /usr/share/doc/edgecore 2>/dev/null",
		"exit status 2")
	m.sh("rm -rf /left /var/lib/kubelet/others && rmdir /var/lib/kubelet")
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(m.sh(everything), "\n")); diff != "" {
		m.t.Errorf("files after purging (-want +got):\n%s%s", diff, printed)
	}
}

// foreignService: KubeEdge's agent, whose service has the same name, is neither started again nor stopped, nor are its
// pods ended.
func foreignService(m *machine) {
	const unit = "/etc/systemd/system/edgecore.service"
	m.write(unit, "[Service]\nExecStart=/usr/local/bin/edgecore\n")
	sum := m.sh("sha256sum " + unit)
	for _, args := range []string{"-i /packages/v1.0.0.deb", "-i /packages/v1.1.0.deb"} {
		printed, calls := m.dpkg(args)
		if calls != "" || !strings.Contains(printed, "`/usr/bin/edgecore adopt --dry-run` shows how") {
			m.t.Errorf("%s: calls %q, want none and how to adopt:\n%s", args, calls, printed)
		}
	}
	if printed, calls := m.dpkg("--purge edgecore"); calls != "systemctl --system daemon-reload" {
		m.t.Errorf("calls of purging = %q, want %q\n%s", calls, "systemctl --system daemon-reload", printed)
	}
	m.expect("sha256sum "+unit, sum)
}

// unitOfNoPackage: where KubeEdge's unit lies in the package's place, it is kept in the administrator's, which goes
// first.
func unitOfNoPackage(m *machine) {
	const text = "[Service]\nExecStart=/usr/local/bin/edgecore --of-kubeedge\n"
	m.write("/usr/lib/systemd/system/edgecore.service", text)
	printed, calls := m.dpkg("-i /packages/v1.0.0.deb")
	if calls != "" || !strings.Contains(printed, "is left alone") {
		m.t.Errorf("calls = %q, want none and that the unit is left alone:\n%s", calls, printed)
	}
	m.expect("cat /etc/systemd/system/edgecore.service", strings.TrimSpace(text))
	m.expect("grep ExecStart /usr/lib/systemd/system/edgecore.service",
		"ExecStart=/usr/bin/edgecore --config /etc/edgecore/edgecore.yaml")
}

func cgroupDriver(m *machine) {
	m.write("/etc/containerd/config.toml", "version = 2\n[plugins.x.runtimes.runc.options]\n  SystemdCgroup = true\n")
	m.dpkg("-i /packages/v1.0.0.deb")
	m.expect("grep '^ *cgroupDriver' /etc/edgecore/edgecore.yaml; diff /usr/share/edgecore/edgecore.yaml "+
		"/etc/edgecore/edgecore.yaml | grep -c '^>'", "cgroupDriver: systemd\n1")
}

// disabled: a service that someone has switched off stays off.
func disabled(m *machine) {
	m.dpkg("-i /packages/v1.0.0.deb")
	m.sh("touch /disabled /stopped; rm /etc/systemd/system/multi-user.target.wants/edgecore.service")
	if printed, calls := m.dpkg("-i /packages/v1.1.0.deb"); calls != "systemctl --system daemon-reload" {
		m.t.Errorf("calls = %q, want %q\n%s", calls, "systemctl --system daemon-reload", printed)
	}
	m.expect("ls /etc/systemd/system/multi-user.target.wants/edgecore.service 2>/dev/null", "exit status 2")
}

// podsRunOn: a runtime that does not answer keeps nobody from removing the package, and nothing is deleted that may be
// mounted.
func podsRunOn(m *machine) {
	m.dpkg("-i /packages/v1.0.0.deb")
	m.write("/var/lib/edgecore/left-overs", "/var/lib/kubelet/pods/old\n") // of an earlier removal
	m.sh("touch /end-pods-fails; mkdir -p /var/lib/kubelet/pods/old /var/lib/edgecore/sub /srv; mount --bind /srv " +
		"/var/lib/edgecore/sub; touch /srv/data")
	printed, _ := m.dpkg("--purge edgecore")
	if strings.Contains(printed, "exit status") || !strings.Contains(printed, "some pods may run on") ||
		!strings.Contains(printed, "/var/lib/edgecore stays: something is mounted in it") {
		m.t.Errorf("unexpected output:\n%s", printed)
	}
	m.expect("ls /srv/data; ls -d /var/lib/kubelet/pods/old; ls /etc/edgecore 2>/dev/null",
		"/srv/data\n/var/lib/kubelet/pods/old\nexit status 2")
	m.expect("dpkg-query -W edgecore 2>/dev/null", "exit status 1")
}

func TestRemoveOthers(t *testing.T) {
	out := t.TempDir()
	for _, name := range []string{"edgecore_1.0.0_arm64.deb", "edgecore_1.1.0_arm64.deb", "edgecore_1.0.0_amd64.deb",
		"edgecore_arm64.deb", "edgecore-arm64"} {
		if err := os.WriteFile(filepath.Join(out, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := (&release{out: out}).removeOthers(target{debian: "arm64"},
		filepath.Join(out, "edgecore_1.1.0_arm64.deb")); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range list {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{
		"edgecore-arm64", "edgecore_1.0.0_amd64.deb", "edgecore_1.1.0_arm64.deb", "edgecore_arm64.deb",
	}, left); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
}
