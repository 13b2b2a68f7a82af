package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/edged/agentconfig"
	"github.com/edgecore-io/edgecore/edgehub/join"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// joinDevice is a device of its own, below a folder, with a cloud and a systemd that only records its calls.
type joinDevice struct {
	t         *testing.T
	dir       string
	authority *cloud.Authority
	port      string
	calls     []string
	fail      error
	fresh     []byte // what a packaged configuration is; nil without a package
	service   *systemd.Service
	// runtimeFor stands for a container runtime; newJoinDevice's runs every pod.
	runtimeFor func(context.Context, *v1alpha2.EdgeCore) error
}

func newJoinDevice(t *testing.T, taken ...string) *joinDevice {
	t.Helper()
	d := &joinDevice{t: t, dir: t.TempDir()}
	d.runtimeFor = func(context.Context, *v1alpha2.EdgeCore) error { return nil }
	d.service = &systemd.Service{
		Root: filepath.Join(d.dir, "root"), Program: "/usr/local/bin/edgecore",
		Systemctl: func(_ context.Context, args ...string) error {
			d.calls = append(d.calls, strings.Join(args, " "))
			return d.fail
		},
	}
	if err := os.MkdirAll(filepath.Join(d.service.Root, "run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.startCloud(taken...)
	return d
}

// startCloud starts a cloud of its own; one that was there before is forgotten.
func (d *joinDevice) startCloud(taken ...string) {
	d.t.Helper()
	client := fake.NewClientset()
	for _, name := range taken {
		if _, err := client.CoreV1().Nodes().Create(d.t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			d.t.Fatal(err)
		}
	}
	var err error
	d.authority, err = cloud.New(d.t.Context(), client.CoreV1().Secrets(cloud.Namespace),
		cloud.Options{Addresses: []string{"127.0.0.1"}})
	if err != nil {
		d.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	if _, d.port, err = net.SplitHostPort(listener.Addr().String()); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	authority := d.authority
	go func() { done <- authority.Serve(ctx, listener, client.CoreV1().Nodes()) }()
	d.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
	})
}

func (d *joinDevice) token(node string) string {
	d.t.Helper()
	token, err := d.authority.NewToken(node, time.Hour)
	if err != nil {
		d.t.Fatal(err)
	}
	return token.String()
}

func (d *joinDevice) config() string { return filepath.Join(d.dir, "config", "edgecore.yaml") }

func (d *joinDevice) files() certs.Files { return join.FilesIn(filepath.Join(d.dir, "certs")) }

// join runs the command with what every one of these tests needs, and returns what it printed.
func (d *joinDevice) join(stdin string, args ...string) (stdout, stderr string, err error) {
	d.t.Helper()
	o := &joinOptions{
		globalOptions: &globalOptions{Config: d.config()}, service: d.service, runtimeFor: d.runtimeFor,
	}
	cmd := o.command()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out, errs bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(append([]string{
		"-e", "127.0.0.1:10000", "--certport", d.port, "--cert-path", filepath.Join(d.dir, "certs"),
	}, args...))
	d.calls = nil
	err = cmd.ExecuteContext(d.t.Context())
	return out.String(), errs.String(), err
}

func (d *joinDevice) mustJoin(stdin string, args ...string) (stdout string) {
	d.t.Helper()
	out, errs, err := d.join(stdin, args...)
	if err != nil {
		d.t.Fatal(err)
	}
	if errs != "" {
		d.t.Errorf("warnings = %q, want none", errs)
	}
	return out
}

func (d *joinDevice) read(name string) string {
	d.t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(data)
}

func TestJoinANewDevice(t *testing.T) {
	d := newJoinDevice(t)
	out := d.mustJoin("\n"+d.token("")+"\n", "--token-file", "-", "-i", "edge1", "--labels", "zone=hall-2,power=solar",
		"--cgroupdriver", "systemd",
		"-p", "/run/crio/crio.sock", "--set", "modules.edged.nodeIP=192.0.2.7")
	cfg, warnings, err := v1alpha2.Load(d.config())
	if err != nil || len(warnings) > 0 {
		t.Fatalf("err %v, warnings %v; want neither", err, warnings)
	}
	want := v1alpha2.Default()
	f := d.files()
	hub, edged := &want.Modules.EdgeHub, &want.Modules.Edged
	hub.HTTPServer, hub.WebSocket.Server, hub.Quic.Server = "https://127.0.0.1:"+d.port, "127.0.0.1:10000",
		"127.0.0.1:10001"
	hub.TLSCAFile, hub.TLSCertFile, hub.TLSPrivateKeyFile = f.CA, f.Cert, f.Key
	edged.HostnameOverride, edged.NodeIP, edged.NodeLabels = "edge1", "192.0.2.7",
		map[string]string{"zone": "hall-2", "power": "solar"}
	edged.TailoredKubeletConfig.CgroupDriver, edged.TailoredKubeletConfig.ContainerRuntimeEndpoint = "systemd",
		"unix:///run/crio/crio.sock"
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	id, err := f.Load()
	if err != nil {
		t.Errorf("Load = %v, want a certificate", err)
	} else if err := certs.CheckNode(id.Cert(), "edge1", false); err != nil {
		t.Errorf("CheckNode = %v, want a certificate for edge1", err)
	}
	for name, mode := range map[string]os.FileMode{
		d.config(): 0o600, f.Key: 0o600, filepath.Dir(d.config()): os.ModeDir | 0o700, d.service.UnitFile(): 0o644,
	} {
		if info, err := os.Stat(name); err != nil {
			t.Error(err)
		} else if info.Mode() != mode {
			t.Errorf("%s: mode %v, want %v", name, info.Mode(), mode)
		}
	}
	if diff := cmp.Diff([]string{"daemon-reload", "enable edgecore.service", "restart edgecore.service"},
		d.calls); diff != "" {
		t.Errorf("systemctl (-want +got):\n%s", diff)
	}
	if got := d.read(d.service.UnitFile()); !strings.Contains(got,
		"\nExecStart=/usr/local/bin/edgecore --config "+d.config()+"\n") {
		t.Errorf("unit, want the installed program with --config %s:\n%s", d.config(), got)
	}
	for _, want := range []string{
		"Got a certificate for node edge1, valid until ", "Wrote configuration", "Wrote service", "edgecore status",
		"kubectl get node edge1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output, want %q in it:\n%s", want, out)
		}
	}
	if strings.Contains(d.read(d.config())+out, "eyJ") {
		t.Errorf("configuration %s\noutput %s\nwant no token (eyJ...) in either", d.read(d.config()), out)
	}
}

// TestJoinAgain: the same command changes nothing; another one changes what it says; all else stays.
func TestJoinAgain(t *testing.T) {
	d := newJoinDevice(t)
	d.mustJoin("", "-t", d.token(""), "-i", "edge1")
	store := filepath.Join(d.dir, "edgecore.db")
	if err := os.WriteFile(store, []byte("pods"), 0o600); err != nil {
		t.Fatal(err)
	}
	edited := d.read(d.config()) + "# a word of mine\ndatabase: {dataSource: " + store + "}\n"
	if err := os.WriteFile(d.config(), []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	key := d.read(d.files().Key)
	out := d.mustJoin("", "-t", d.token(""))
	if d.read(d.config()) != edited || d.read(d.files().Key) != key || d.read(store) != "pods" {
		t.Errorf("after joining again: configuration %q, same key %v, store %q; want %q, true, %q", d.read(d.config()),
			d.read(d.files().Key) == key, d.read(store), edited, "pods")
	}
	for _, want := range []string{
		"Kept the certificate of node edge1, valid until", "is as it should be", "is installed",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output, want %q in it:\n%s", want, out)
		}
	}
	out = d.mustJoin("", "--labels", "zone=a") // no token is needed for that
	got, _, err := v1alpha2.Load(d.config())
	if err != nil {
		t.Fatal(err)
	}
	if zone := got.Modules.Edged.NodeLabels["zone"]; zone != "a" || got.Database.DataSource != store {
		t.Errorf("label zone = %q, dataSource = %q; want a and %q as before", zone, got.Database.DataSource, store)
	}
	if bak := d.read(d.config() + ".bak"); bak != edited || !strings.Contains(out, ".bak") {
		t.Errorf("backup = %q, printed %q; want %q and the backup named", bak, out, edited)
	}
	// The cloud was set up again; the node is there, since its objects were brought over.
	d.startCloud("edge1")
	d.mustJoin("", "-t", d.token(""))
	if id, err := d.files().Load(); err != nil {
		t.Errorf("Load = %v, want a certificate", err)
	} else if !id.CAs[0].Equal(d.authority.CA()) {
		t.Errorf("CA = %v, want that of the new cloud, %v", id.CAs[0].SerialNumber, d.authority.CA().SerialNumber)
	}
	if got := d.read(store); got != "pods" {
		t.Errorf("store = %q, want %q as before", got, "pods")
	}
	// What is damaged is recreated.
	if err := os.WriteFile(d.files().Cert, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.join(""); err == nil || !strings.Contains(err.Error(), "no state is lost") {
		t.Errorf("join of a damaged device without a token = %v, want an error with %q", err, "no state is lost")
	}
	d.mustJoin("", "-t", d.token("edge1"))
	if _, err := d.files().Load(); err != nil {
		t.Error(err)
	}
}

func TestJoinANameThatIsTaken(t *testing.T) {
	d := newJoinDevice(t, "edge1")
	_, _, err := d.join("", "-t", d.token(""), "-i", "edge1")
	for _, want := range []string{
		"has a node edge1 already", "--edgenode-name", "kubectl delete node edge1", "--take-name",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v, want %q in it", err, want)
		}
	}
	nothingWritten(t, d)
	d.mustJoin("", "-t", d.token(""), "-i", "edge1", "--take-name")

	d = newJoinDevice(t, "edge1")
	d.mustJoin("", "-t", d.token("edge1")) // a token for this node is word enough, and names it
	if cfg, _, err := v1alpha2.Load(d.config()); err != nil {
		t.Error(err)
	} else if got := cfg.Modules.Edged.HostnameOverride; got != "edge1" {
		t.Errorf("hostnameOverride = %q, want the name in the token, edge1", got)
	}
}

func nothingWritten(t *testing.T, d *joinDevice) {
	t.Helper()
	for _, name := range []string{d.config(), d.files().CA, d.files().Key, d.service.UnitFile()} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("Stat(%s) = nil, want it not written", name)
		}
	}
	if len(d.calls) > 0 {
		t.Errorf("calls of systemctl = %v, want none", d.calls)
	}
}

func TestJoinFails(t *testing.T) {
	d := newJoinDevice(t)
	file := filepath.Join(d.dir, "token")
	if err := os.WriteFile(file, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	token := d.token("")
	for name, tc := range map[string]struct {
		stdin string
		args  []string
		err   string
	}{
		"no address":         {"", []string{"-t", token, "-e", ""}, "--cloudcore-ipport HOST:PORT is missing"},
		"bad address":        {"", []string{"-t", token, "-e", "https://x"}, "want HOST:PORT"},
		"no token":           {"", nil, "has no certificate for the cloud yet"},
		"two tokens":         {"", []string{"-t", token, "--token-file", "-"}, "want one of the two"},
		"empty stdin":        {"\n", []string{"--token-file", "-"}, "--token-file -: there is no token in it"},
		"empty stdin, by -t": {"", []string{"-t", "-"}, "there is no token in it"},
		"empty file":         {"", []string{"--token-file", file}, "there is no token in it"},
		"no file":            {"", []string{"--token-file", file + "x"}, "no such file"},
		"bad token":          {"", []string{"-t", "x.y"}, "copy the whole line"},
		"another cloud's":    {"", []string{"-t", strings.Repeat("0", 64) + token[64:]}, "does not match the token"},
		"another node's": {
			"", []string{"-t", d.token("edge2"), "-i", "edge1"},
			`the token is for node "edge2", and this device is "edge1"`,
		},
		"bad name":        {"", []string{"-t", token, "-i", "Edge_1"}, `"edge-1" would do`},
		"bad driver":      {"", []string{"-t", token, "--cgroupdriver", "docker"}, "cgroupDriver"},
		"bad protocol":    {"", []string{"-t", token, "--hub-protocol", "http"}, "want websocket or quic"},
		"bad port":        {"", []string{"-t", token, "--certport", "0"}, "want 1 to 65535"},
		"bad label":       {"", []string{"-t", token, "-l", "zone"}, "want KEY=VALUE"},
		"bad label value": {"", []string{"-t", token, "-l", "zone=a b"}, "a label's value"},
		"unknown key": {
			"", []string{"-t", token, "--set", "modules.edged.nodeIp=192.0.2.1"}, `did you mean "nodeIP"?`,
		},
		"a key below a text": {"", []string{"-t", token, "--set", "apiVersion.x=1"}, "has no keys below it"},
		"an argument":        {"", []string{"-t", token, "now"}, "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := d.join(tc.stdin, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%v, want %q in it", err, tc.err)
			}
			if strings.Contains(err.Error(), token[70:]) {
				t.Errorf("error = %v, want it without the token", err)
			}
			nothingWritten(t, d)
		})
	}
}

// TestJoinWithKeadmsFlags: what does nothing says so, and why.
func TestJoinWithKeadmsFlags(t *testing.T) {
	d := newJoinDevice(t)
	_, errs, err := d.join("", "--token", d.token(""), "--edgenode-name=edge1", "--kubeedge-version=v1.23.1",
		"--runtimetype=remote", "--with-mqtt=false",
		"--region=zh", "--domainname=cloud.example", "--hub-protocol=quic",
		"--remote-runtime-endpoint=unix:///run/containerd/containerd.sock",
		"--certPath", filepath.Join(d.dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"warning: --kubeedge-version does nothing: nothing is downloaded",
		"warning: --region does nothing: nothing is downloaded", "warning: --domainname does nothing: ",
		"warning: --runtimetype does nothing: ", "warning: --with-mqtt does nothing: ",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("warnings, want %q in them:\n%s", want, errs)
		}
	}
	cfg, _, err := v1alpha2.Load(d.config())
	if err != nil {
		t.Fatal(err)
	}
	quic, ws := cfg.Modules.EdgeHub.Quic, cfg.Modules.EdgeHub.WebSocket
	if !quic.Enable || ws.Enable || ws.Server != "127.0.0.1:10000" {
		t.Errorf("QUIC %v, WebSocket %v with server %q; want true, false, 127.0.0.1:10000", quic.Enable, ws.Enable,
			ws.Server)
	}
	if _, err := join.FilesIn(filepath.Join(d.dir, "other")).Load(); err != nil {
		t.Errorf("--certPath: %v", err)
	}
}

// TestJoinWithKubeSpheresCommand: the flags of the command that KubeSphere prints are taken, and its ports and address
// are written. Joining again adds no second taint.
func TestJoinWithKubeSpheresCommand(t *testing.T) {
	d := newJoinDevice(t)
	args := []string{
		"--kubeedge-version=1.13.0", "--region=zh", "--cloudcore-ipport=127.0.0.1:30000", "--quicport", "30001",
		"--certport", d.port, "--tunnelport", "30004", "--edgenode-name", "edgenode-2jag", "--edgenode-ip",
		"192.0.2.215", "--token", d.token(""), "--with-edge-taint", "-r", "docker", "--interfacename", "eth7",
	}
	for _, set := range []string{
		"", "modules.edged.tailoredKubeletConfig.registerWithTaints=null",
	} {
		if _, _, err := d.join("", append(args, "--set", set)...); err != nil {
			t.Fatal(err)
		}
		d.mustJoin("", "--with-edge-taint", "-e", "127.0.0.1:30000", "--quicport", "30001")
		cfg, _, err := v1alpha2.Load(d.config())
		if err != nil {
			t.Fatal(err)
		}
		m := cfg.Modules
		got := []string{
			m.EdgeHub.WebSocket.Server, m.EdgeHub.Quic.Server, m.EdgeStream.Server, m.Edged.HostnameOverride,
			m.Edged.NodeIP, m.Edged.CustomInterfaceName,
		}
		for _, taint := range m.Edged.TailoredKubeletConfig.RegisterWithTaints {
			got = append(got, taint.ToString())
		}
		if diff := cmp.Diff([]string{
			"127.0.0.1:30000", "127.0.0.1:30001", "127.0.0.1:30004", "edgenode-2jag", "192.0.2.215", "eth7",
			"node-role.kubernetes.io/edge:NoSchedule",
		}, got); diff != "" {
			t.Errorf("configuration (-want +got):\n%s", diff)
		}
	}
}

// TestJoinScripts: the scripts run, one before anything is done and one after all of it. The first one stops the join
// if it fails; that the second one fails is said.
func TestJoinScripts(t *testing.T) {
	script := func(d *joinDevice, name, text string) string {
		file := filepath.Join(d.dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	d := newJoinDevice(t)
	state := `if [[ -e "` + d.config() + `" ]]; then echo with a configuration; else echo without a configuration; fi
`
	before, after := script(d, "before", "echo -n before:; "+state), script(d, "after", "echo -n after:; "+state)
	bad := script(d, "bad", "echo why >&2; exit 3")
	args := []string{"-i", "edge1", "-t", d.token("")}
	for want, args := range map[string][]string{
		"nothing is done, because --pre-run " + bad + ": exit status 3": {"--pre-run", bad, "--post-run", after},
		"--pre-run: want the file of a script":                          {"--pre-run=", "--post-run", after},
		"--post-run: stat " + bad + "x: no such file or directory":      {"--pre-run", before, "--post-run", bad + "x"},
		"--post-run: " + d.dir + " is a folder":                         {"--pre-run", before, "--post-run", d.dir},
		"want websocket or quic": {
			"--pre-run", before, "--hub-protocol=http",
		},
	} {
		out, _, err := d.join("", append([]string{"-i", "edge1", "-t", d.token("")}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(out, ":with") {
			t.Errorf("join %v = %v, want an error with %q and no other script:\n%s", args, err, want, out)
		}
		nothingWritten(t, d)
	}
	out := d.mustJoin("", append(args, "--pre-run", before, "--post-run", after)...)
	for _, want := range []string{"before:without a configuration\nGot a", "node edge1\nafter:with a configuration\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("printed, want %q in it:\n%s", want, out)
		}
	}
	_, errs, err := d.join("", "--post-run", bad)
	if want := "the device has joined, but --post-run " + bad + ": exit status 3"; err == nil || err.Error() != want ||
		errs != "why\n" {
		t.Errorf("join = %v with %q on stderr, want %s and %q", err, errs, want, "why\n")
	}
}

func TestJoinAConfigurationThatIsWrong(t *testing.T) {
	d := newJoinDevice(t)
	if err := certs.WriteFile(d.config(), []byte("kind: Edge\n")); err != nil {
		t.Fatal(err)
	}
	_, _, err := d.join("", "-t", d.token(""))
	if err == nil || !strings.Contains(err.Error(), "correct the file, or move it away") {
		t.Errorf("join = %v, want an error with its remedy: correct the file, or move it away", err)
	}
	// One of KubeEdge's is taken, its token is gone afterwards, its other keys stay.
	kubeEdge := d.read(kubeEdgeFile)
	if err := certs.WriteFile(d.config(),
		[]byte(strings.Replace(kubeEdge, "token: \"\"", "token: secret.token", 1))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.join("", "-t", d.token("")); err != nil {
		t.Fatal(err)
	}
	before, _, err := v1alpha2.Parse([]byte(kubeEdge))
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := v1alpha2.Load(d.config())
	if err != nil || after.Modules.EdgeHub.Token != "" {
		t.Fatalf("Load: token %q, %v; want none", after.Modules.EdgeHub.Token, err)
	}
	if diff := cmp.Diff(before.Modules.Edged, after.Modules.Edged); diff != "" {
		t.Errorf("edged's section (-want +got):\n%s", diff)
	}
}

// TestJoinWithoutARuntime: the agent does not go back from the configuration of a join, so the command itself says that
// no pod can start with it.
func TestJoinWithoutARuntime(t *testing.T) {
	d := newJoinDevice(t)
	d.runtimeFor = agentconfig.RuntimeFor
	socket := filepath.Join(d.dir, "gone.sock")
	_, errs, err := d.join("", "-t", d.token(""), "-p", socket)
	if err != nil || !strings.Contains(errs, "no pod can start until this is corrected: modules.edged."+
		"tailoredKubeletConfig.containerRuntimeEndpoint: ") || !strings.Contains(errs, socket) {
		t.Errorf("join = %v with %q on stderr, want a warning with the key and %s", err, errs, socket)
	}
	if _, errs, err := d.join("", "--set", "modules.edged.enable=false"); err != nil || errs != "" {
		t.Errorf("join without edged = %v with %q on stderr, want neither: it runs no pods", err, errs)
	}
}

func TestService(t *testing.T) {
	d := newJoinDevice(t)
	unit := d.service.UnitFile()
	if err := os.MkdirAll(filepath.Dir(unit), 0o755); err != nil {
		t.Fatal(err)
	}
	const keadms = "[Service]\nExecStart=/usr/local/bin/edgecore\n"
	if err := os.WriteFile(unit, []byte(keadms), 0o644); err != nil {
		t.Fatal(err)
	}
	d.mustJoin("", "-t", d.token(""), "-i", "edge1")
	if got := d.read(unit + ".bak"); got != keadms {
		t.Errorf("backup of the unit = %q, want keadm's, %q", got, keadms)
	}
	d.fail = errors.New("systemctl restart: exit status 1: no")
	_, _, err := d.join("", "-t", d.token(""))
	if err == nil || !strings.Contains(err.Error(), "the device has joined, but the agent is not started: systemctl") {
		t.Errorf("join = %v, want that the device has joined, but the agent is not started", err)
	}
	d.fail = nil
	out := d.mustJoin("", "--no-start")
	if len(d.calls) > 0 || !strings.Contains(out, "  /usr/local/bin/edgecore --config "+d.config()) {
		t.Errorf("--no-start: calls %v, %s; want none and how to start the agent", d.calls, out)
	}
	// A package's unit is used as it is.
	if err := errors.Join(os.Remove(unit), os.MkdirAll(filepath.Join(d.service.Root, "usr/lib/systemd/system"),
		0o755)); err != nil {
		t.Fatal(err)
	}
	packaged := filepath.Join(d.service.Root, "usr/lib/systemd/system/edgecore.service")
	if err := os.WriteFile(packaged, []byte("[Service]\nExecStart=/usr/local/bin/edgecore --config "+d.config()+"\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if out = d.mustJoin(""); !strings.Contains(out, "is the package's") {
		t.Errorf("printed %s, want that the unit is the package's", out)
	}
	if _, err := os.Stat(unit); err == nil {
		t.Errorf("Stat(%s) = nil, want no second unit", unit)
	}
	if err := os.WriteFile(packaged, []byte("[Service]\nExecStart=/usr/bin/other\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out = d.mustJoin(""); !strings.Contains(out, "Wrote service") {
		t.Errorf("printed %s, want the service written: the other unit starts something else", out)
	}
	// No systemd.
	if err := os.RemoveAll(filepath.Join(d.service.Root, "run")); err != nil {
		t.Fatal(err)
	}
	if out = d.mustJoin(""); len(d.calls) > 0 ||
		!strings.Contains(out, "systemd does not run here; this runs the agent") {
		t.Errorf("without systemd: calls %v, %s; want none and what runs the agent", d.calls, out)
	}
}
