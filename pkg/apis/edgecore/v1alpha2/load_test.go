package v1alpha2

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/stricttest"
)

const head = "apiVersion: edgecore.config.kubeedge.io/v1alpha2\nkind: EdgeCore\n"

func kind() stricttest.Kind[EdgeCore] {
	return stricttest.Kind[EdgeCore]{Head: head, Load: Load, Parse: Parse, Default: Default, Minimal: Minimal}
}

// TestKubeEdgeFiles: the files of KubeEdge users are taken as they are, with the warnings beside them.
// UPDATE_GOLDEN=1 writes the warnings again.
func TestKubeEdgeFiles(t *testing.T) {
	kind().TakesFiles(t, "kubeedge-v1.23", "kubeedge-v1.13")
}

func TestKubeEdgeValuesTakeEffect(t *testing.T) {
	cfg, _, err := Load("testdata/kubeedge-v1.23.yaml")
	if err != nil {
		t.Fatal(err)
	}
	edged := &cfg.Modules.Edged
	kubelet := &edged.TailoredKubeletConfig
	got := map[string]any{
		"name": edged.HostnameOverride, "ip": edged.NodeIP, "site": edged.NodeLabels["site"],
		"port": kubelet.ReadOnlyPort, "dns": kubelet.ClusterDNS,
		"driver": kubelet.CgroupDriver, "maxPods": kubelet.MaxPods, "password": cfg.Modules.EventBus.MqttPassword,
		"sync": kubelet.SyncFrequency.Duration,
	}
	want := map[string]any{
		"name": "press-07", "ip": "192.0.2.77", "site": "12", "port": int32(10350), "dns": []string{"169.254.96.16"},
		"driver": "systemd", "maxPods": int32(30), "password": "20261121", "sync": time.Minute,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFormerEndpointsAreTaken(t *testing.T) {
	cfg, _, err := Load("testdata/kubeedge-v1.13.yaml")
	if err != nil {
		t.Fatal(err)
	}
	k := &cfg.Modules.Edged.TailoredKubeletConfig
	if k.ContainerRuntimeEndpoint != "unix:///run/containerd/containerd.sock" ||
		k.ImageServiceEndpoint != "unix:///run/containerd/images.sock" {
		t.Errorf("endpoints are %q and %q, want containerd.sock and images.sock of unix:///run/containerd/",
			k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint)
	}
	for text, want := range map[string]string{
		"remoteRuntimeEndpoint: " +
			"unix:///var/run/dockershim.sock": "there is no dockershim any more",
		"remoteRuntimeEndpoint: unix:///a\n    tailoredKubeletConfig: {containerRuntimeEndpoint: " +
			"unix:///run/containerd/containerd.sock}": "has taken its place",
	} {
		cfg, warnings, err := Parse([]byte(head + "modules:\n  edged:\n    " + text + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.Modules.Edged.TailoredKubeletConfig.ContainerRuntimeEndpoint; got != DefaultCRISocket {
			t.Errorf("%s: endpoint = %q, want %q", text, got, DefaultCRISocket)
		}
		if len(warnings) != 1 || !strings.Contains(warnings[0], want) {
			t.Errorf("%s: warnings %q, want one with %q", text, warnings, want)
		}
	}
}

// TestDefaultIsAFile: what --defaultconfig prints says the same as an empty file.
func TestDefaultIsAFile(t *testing.T) { kind().DefaultIsAFile(t) }

func TestMinimalIsAFile(t *testing.T) { kind().MinimalIsAFile(t) }

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want func(*EdgeCore)
	}{
		"null is the default": {
			"database: null\nmodules:\n  edged:\n    hostnameOverride:\n    tailoredKubeletConfig: {syncFrequency: " +
				"null, cpuCFSQuota: null}\n", func(*EdgeCore) {},
		},
		"no node name": {"modules: {edged: {hostnameOverride: ''}}\n", func(*EdgeCore) {}},
		"a map takes the place": {
			"modules: {edged: {tailoredKubeletConfig: {evictionHard: {memory.available: 50Mi}}}}\n", func(e *EdgeCore) {
				e.Modules.Edged.TailoredKubeletConfig.EvictionHard = map[string]string{"memory.available": "50Mi"}
			},
		},
		"no evictions": {"modules: {edged: {tailoredKubeletConfig: {evictionHard: {}}}}\n", func(e *EdgeCore) {
			e.Modules.Edged.TailoredKubeletConfig.EvictionHard = map[string]string{}
		}},
		"texts from scalars": {"modules: {edged: {nodeLabels: {a: true, b: 1.5, c: x}}}\n", func(e *EdgeCore) {
			e.Modules.Edged.NodeLabels = map[string]string{"a": "true", "b": "1.5", "c": "x"}
		}},
		"a bare socket": {
			"modules: {edged: {tailoredKubeletConfig: {containerRuntimeEndpoint: /run/crio/crio.sock}}}\n",
			func(e *EdgeCore) {
				e.Modules.Edged.TailoredKubeletConfig.ContainerRuntimeEndpoint = "unix:///run/crio/crio.sock"
			},
		},
		"a module that is off is not looked at": {
			"modules: {eventBus: {enable: false, mqttMode: 7}}\n", func(e *EdgeCore) {
				e.Modules.EventBus.Enable, e.Modules.EventBus.MqttMode = false, 7
			},
		},
		"comments, marks and windows' lines": {"# a\r\n---\r\n# b\r\n", func(*EdgeCore) {}},
	} {
		t.Run(name, func(t *testing.T) {
			text := head + tc.text
			if strings.HasPrefix(tc.text, "#") {
				text = tc.text + head + "...\n# the end\n"
			}
			got, _, err := Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			tc.want(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty":         {"", "is empty; `edgecore --minconfig` prints one to start from"},
		"comments only": {"# nothing\n---\n", "is empty; `edgecore --minconfig` prints one to start from"},
		"a list": {
			"- a\n", "is not a mapping of keys to values; `edgecore --minconfig` prints one to start from",
		},
		"binary":  {"\x7fELF\x00\x01", "is not text in UTF-8, so it is not YAML"},
		"latin 1": {head + "# caf\xe9\n", "is not text in UTF-8, so it is not YAML"},
		"no YAML": {head + "modules: [\n", "not YAML: line 3: did not find expected node content"},
		"many aliases": {
			head + "x: &x " + strings.Repeat("x", 64<<10) + "\ny: [" + strings.Repeat("*x,", 300_000) + "]\n",
			"not YAML: its aliases (*name) stand for too much, more than 1024 KiB: write out what they stand for",
		},
		"two documents": {head + "---\n" + head, "line 4: a second document begins; want one"},
		"no kind":       {"apiVersion: x\n", `kind: is missing; want "EdgeCore"`},
		"no version":    {"kind: EdgeCore\n", `apiVersion: is missing; want "edgecore.config.kubeedge.io/v1alpha2"`},
		"cloudcore": {
			"kind: CloudCore\n", `kind: "CloudCore" is not allowed; want "EdgeCore": this file is for cloudcore`,
		},
		"the kubelet's": {
			"kind: KubeletConfiguration\n",
			`kind: "KubeletConfiguration" is not allowed; want "EdgeCore", with the kubelet's keys under modules.edged.tailoredKubeletConfig`,
		},
		"an old version": {
			"kind: EdgeCore\napiVersion: edgecore.config.kubeedge.io/v1alpha1\n",
			"apiVersion: \"edgecore.config.kubeedge.io/v1alpha1\" is not allowed; want " +
				"\"edgecore.config.kubeedge.io/v1alpha2\"; v1alpha1 is the form of KubeEdge before 1.12, with other " +
				"keys (`edgecore --defaultconfig` shows those of today)",
		},
		"unknown": {
			head + "modules:\n  edged:\n    hostnameOveride: a\n",
			`line 5: modules.edged.hostnameOveride: no such key; did you mean "hostnameOverride"?`,
		},
		"in capitals": {
			head + "database:\n  datasource: /a\n",
			`line 4: database.datasource: no such key; did you mean "dataSource"?`,
		},
		"misplaced": {
			head + "modules:\n  edged:\n    maxPods: 3\n", "line 5: modules.edged.maxPods: no such key here; it " +
				"belongs at modules.edged.tailoredKubeletConfig.maxPods",
		},
		"unknown at top": {head + "zzz: 3\n", `line 3: zzz: no such key; the nearest one at the top is "kind"`},
		"in a list": {
			head + "modules:\n  edged:\n    tailoredKubeletConfig:\n      registerWithTaints:\n      - key: " +
				"a\n        effect: NoSchedule\n      - key: b\n        efect: x\n        effect: NoSchedule\n",
			`line 10: modules.edged.tailoredKubeletConfig.registerWithTaints[1].efect: no such key; did you mean "effect"?`,
		},
		"twice": {
			head + "database:\n  dataSource: /a\n  dataSource: /b\n",
			"line 5: database.dataSource: the key is there twice; keep one",
		},
		"twice, in flow": {
			head + "database: {dataSource: /a, dataSource: /b}\n", "line 3: database: the key is there twice; keep one",
		},
		"a bad text": {
			head + "database:\n  dataSource: [1]\n", "line 4: database.dataSource: a list is not allowed; want a text",
		},
		"a bad number": {
			head + "modules:\n  edgeHub:\n    heartbeat: '15'\n",
			`line 5: modules.edgeHub.heartbeat: "15" is not allowed; want a number, without quotes`,
		},
		"a broken number": {
			head + "modules:\n  edgeHub:\n    heartbeat: 1.5\n", "line 5: modules.edgeHub.heartbeat: 1.5 is not " +
				"allowed; want a whole number from -2147483648 to 2147483647",
		},
		"a small number": {
			head + "modules:\n  eventBus:\n    mqttQOS: 300\n",
			"line 5: modules.eventBus.mqttQOS: 300 is not allowed; want a whole number from 0 to 255",
		},
		"a bad switch": {
			head + "modules:\n  edged:\n    enable: 1\n",
			"line 5: modules.edged.enable: 1 is not allowed; want true or false",
		},
		"a bad duration": {
			head + "modules:\n  edged:\n    minimumGCAge: 10\n", "line 5: modules.edged.minimumGCAge: 10 is not " +
				"allowed; want a duration with its unit, such as 30s, 5m or 1h30m",
		},
		"a bad mapping": {
			head + "modules:\n  edged: yes please\n",
			`line 4: modules.edged: "yes please" is not allowed; want a mapping with keys such as customInterfaceName, enable, experimentalMounterPath`,
		},
		"a bad list": {head + "modules:\n  edged:\n    tailoredKubeletConfig:\n      clusterDNS: 10.0.0.10\n",
			`line 6: modules.edged.tailoredKubeletConfig.clusterDNS: "10.0.0.10" is not allowed; want a list`},
		"several": {
			head + "database:\n  dataSource: here\nmodules:\n  edged:\n    nodeIP: 300.1.1.1\n    what: 1\n    " +
				"tailoredKubeletConfig:\n      cgroupDriver: none\n", `4 problems:
  line 4: database.dataSource: "here" is not allowed; want an absolute path
  line 7: modules.edged.nodeIP: "300.1.1.1" is not allowed; want an IP address, or one of IPv4 and one of IPv6 with a comma between
  line 8: modules.edged.what: no such key; the nearest one in modules.edged is "enable"
  line 10: modules.edged.tailoredKubeletConfig.cgroupDriver: "none" is not allowed; want one of cgroupfs, systemd`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _, err := Parse([]byte(tc.text))
			if err == nil {
				t.Fatalf("Parse = %+v, want an error", cfg)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// manyProblems is a file with so many keys that mean nothing.
func manyProblems(keys int) []byte {
	text := &strings.Builder{}
	text.WriteString(head)
	for i := range keys {
		text.WriteString(strings.Repeat("k", 1+i%40) + strings.Repeat("x", i/40%500) + string(rune('a'+i%26)) + ": 1\n")
	}
	return []byte(text.String())
}

// TestManyProblems: a file that is something else altogether is answered in bounded words.
func TestManyProblems(t *testing.T) {
	_, _, err := Parse(manyProblems(3000))
	var problems Problems
	if !errors.As(err, &problems) || len(problems) < 1000 {
		t.Fatalf("got %d problems, want 1000 or more", len(problems))
	}
	if lines := strings.Count(err.Error(), "\n"); lines != strict.MaxShown+1 {
		t.Errorf("the error has %d lines, want %d", lines, strict.MaxShown+1)
	}
}

// BenchmarkManyProblems parses a file of almost the maximum size in which every line is wrong.
func BenchmarkManyProblems(b *testing.B) {
	text := manyProblems(20000)
	for b.Loop() {
		if _, _, err := Parse(text); err == nil {
			b.Fatal("Parse = nil, want an error")
		}
	}
}

func TestLoadFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "none.yaml")
	large := write("large", append([]byte(head), []byte(strings.Repeat("# long\n", 1<<18))...))
	for path, want := range map[string]string{
		missing:                      "file does not exist; `edgecore --minconfig > " + missing + "` makes one",
		dir:                          "is a directory; want the file",
		pipe:                         "is not a regular file",
		large:                        "has more than 1024 KiB; that is not a configuration",
		write("empty", nil):          "is empty; `edgecore --minconfig` prints one to start from",
		write("bad", []byte("a: 1")): `kind: is missing; want "EdgeCore"`,
	} {
		_, _, err := Load(path)
		if err == nil {
			t.Errorf("Load(%s) = nil, want an error", path)
		} else if diff := cmp.Diff("configuration "+path+": "+want, err.Error()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if _, _, err := Load(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load(%s) = %v, want %v", missing, err, os.ErrNotExist)
	}
}

func TestFileIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.yaml")
	text := head + "modules: {edgeHub: {token: abc}}\nedgecoreVersion: v1.20.0\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != text || !info.ModTime().Equal(old) {
		t.Errorf("the file is %q, changed at %v; want %q, %v", data, info.ModTime(), text, old)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("files in the folder = %v, %v; want one", entries, err)
	}
}

// TestNoLink: a file that names a cloud and switches the link off gets a warning; a device that is to have none does
// not.
func TestNoLink(t *testing.T) {
	for text, want := range map[string]string{
		"{enable: false}":                                        "",
		"{websocket: {server: '192.0.2.1:10000'}}":               "",
		"{enable: false, token: ''}":                             "",
		"{enable: false, tlsCaFile: /ca.crt}":                    "",
		"{enable: false, token: hunter2}":                        "modules.edgeHub.token",
		"{enable: false, httpServer: 'https://192.0.2.1:10002'}": "modules.edgeHub.httpServer",
		"{enable: false, quic: {server: '192.0.2.1:10001'}}":     "modules.edgeHub.quic.server",
		"{enable: false, websocket: {server: 127.0.0.1:10000}}": "line 3: modules.edgeHub.enable: false: this node " +
			"connects to no cloud, although modules.edgeHub.websocket.server names one; want true, or that key left " +
			"out",
	} {
		_, warnings, err := Parse([]byte(head + "modules: {edgeHub: " + text + "}\n"))
		got := strings.Join(warnings, "\n")
		if err != nil || (got == "") != (want == "") || !strings.Contains(got, want) || strings.Contains(got, secret) {
			t.Errorf("edgeHub %s: error %v, warnings %q; want one with %q", text, err, got, want)
		}
	}
}

// TestStrategyIsShown: the key has the word "secret" in it, and holds none.
func TestStrategyIsShown(t *testing.T) {
	_, _, err := Parse([]byte(head + "modules: {edged: {tailoredKubeletConfig: " +
		"{configMapAndSecretChangeDetectionStrategy: Poll}}}\n"))
	if err == nil || !strings.Contains(err.Error(), `"Poll" is not allowed; want one of Get,`) {
		t.Errorf("Parse = %v, want the value in the error", err)
	}
}
