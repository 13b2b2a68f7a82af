package v1alpha1

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/stricttest"
)

const head = "apiVersion: cloudcore.config.kubeedge.io/v1alpha1\nkind: CloudCore\n"

func kind() stricttest.Kind[CloudCore] {
	return stricttest.Kind[CloudCore]{Head: head, Load: Load, Parse: Parse, Default: Default, Minimal: Minimal}
}

func TestEveryKeyIsLiveOrWarnedOf(t *testing.T) {
	stricttest.EveryKeyIsLiveOrWarnedOf(t, schema(), 110)
}

func TestRows(t *testing.T) { stricttest.RowsAreKeys(t, schema(), rows()) }

// TestTablesNameKeys: what the tables name are keys.
func TestTablesNameKeys(t *testing.T) {
	known := stricttest.TablesNameKeys(t, schema())
	for path, keys := range deprecatedKeys() {
		if path != "" && !known[path] {
			t.Errorf("%s in the tables is not a key, want one", path)
		}
		for _, key := range keys {
			if at := strict.Join(path, key); known[at] {
				t.Errorf("former key %s is a key, want none", at)
			}
		}
	}
}

// TestKubeEdgeFiles: the files of KubeEdge users are taken as they are, with the warnings beside them.
// UPDATE_GOLDEN=1 writes the warnings again.
func TestKubeEdgeFiles(t *testing.T) {
	kind().TakesFiles(t, "kubeedge-v1.23", "kubeedge-helm", "kubeedge-v1.12")
}

// TestDefaultIsAFile: what --defaultconfig prints says the same as an empty file.
func TestDefaultIsAFile(t *testing.T) { kind().DefaultIsAFile(t) }

func TestMinimalIsAFile(t *testing.T) { kind().MinimalIsAFile(t) }

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		text     string
		warnings []string
		want     func(*CloudCore)
	}{
		"null is the default": {
			"modules:\n  cloudHub:\n    nodeLimit:\n    websocket: null\n", nil, func(*CloudCore) {},
		},
		"what grows with the nodes": {"modules: {cloudHub: {nodeLimit: 1000}}\n", nil, func(c *CloudCore) {
			c.Modules.CloudHub.NodeLimit, c.KubeAPIConfig.QPS, c.KubeAPIConfig.Burst = 1000, 5000, 10000
			b, l := &c.Modules.EdgeController.Buffer, &c.Modules.EdgeController.Load
			b.PatchNode, b.QueryNode, b.CreateLease = 1524, 2024, 2024
			l.PatchNodeWorkers, l.QueryNodeWorkers, l.CreateLeaseWorkers = 120, 1000, 1000
		}},
		"said, and not worked out": {"modules: {cloudHub: {nodeLimit: 500}}\nkubeAPIConfig: {qps: 50, burst: 100}\n",
			nil, func(c *CloudCore) {
				c.KubeAPIConfig.QPS, c.KubeAPIConfig.Burst = 50, 100
			}},
		"a list takes the place": {
			"modules: {cloudHub: {advertiseAddress: [192.0.2.1, '2001:db8::1'], dnsNames: [a.example.com, " +
				"'*.b.example.com']}}\n", nil, func(c *CloudCore) {
				c.Modules.CloudHub.AdvertiseAddress, c.Modules.CloudHub.DNSNames = []string{"192.0.2.1", "2001:db8::1"},
					[]string{"a.example.com", "*.b.example.com"}
			},
		},
		"names without an address": {
			"modules: {cloudHub: {advertiseAddress: [], dnsNames: [a.example.com]}}\n", nil, func(c *CloudCore) {
				c.Modules.CloudHub.AdvertiseAddress, c.Modules.CloudHub.DNSNames = []string{}, []string{"a.example.com"}
			},
		},
		"a list of mappings, too": {
			"modules: {cloudHub: {authorization: {modes: [{}]}}}\n",
			[]string{
				"line 3: modules.cloudHub.authorization.modes: accepted, but this version always checks: a node may " +
					"do what the name in its certificate may, and no more",
			},
			func(c *CloudCore) { c.Modules.CloudHub.Authorization.Modes = []AuthorizationMode{{}} },
		},
		"not acted on": {
			"modules:\n  edgeController:\n    buffer:\n      queryNode: 7\n  syncController: {enable: false}\n",
			[]string{
				"line 6: modules.edgeController.buffer.queryNode: accepted, but this version does not act on it",
				"line 7: modules.syncController.enable: accepted, but this version always sees to it that what " +
					"was sent " +
					"arrives",
			}, func(c *CloudCore) {
				c.Modules.EdgeController.Buffer.QueryNode, c.Modules.SyncController.Enable = 7, false
			},
		},
		"not there": {"modules:\n  router: {enable: true, port: 9444}\n", []string{
			"line 4: modules.router.enable: accepted, but this version does not have this module yet",
			"line 4: modules.router.port: accepted, but this version does not act on it",
		}, func(c *CloudCore) { c.Modules.Router.Enable, c.Modules.Router.Port = true, 9444 }},
		"not needed": {"modules: {iptablesManager: {enable: true, mode: external}}\n", []string{
			"line 3: modules.iptablesManager.mode: accepted and not needed: requests reach nodes through ports of " +
				"cloudcore (modules.cloudStream), without rules of iptables",
		}, func(c *CloudCore) { c.Modules.IPTablesManager.Mode = "external" }},
		"a module that is off is not looked at": {"modules: {router: {enable: false, port: 0}}\n",
			[]string{"line 3: modules.router.port: accepted, but this version does not act on it"}, func(c *CloudCore) {
				c.Modules.Router.Port = 0
			}},
	} {
		t.Run(name, func(t *testing.T) {
			got, warnings, err := Parse([]byte(head + tc.text))
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			tc.want(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestVersionOfTheChart: KubeEdge's chart writes v1alpha2 over the same keys.
func TestVersionOfTheChart(t *testing.T) {
	got, warnings, err := Parse([]byte("kind: CloudCore\napiVersion: cloudcore.config.kubeedge.io/v1alpha2\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := []string{
		`line 2: apiVersion: "cloudcore.config.kubeedge.io/v1alpha2" is read as "cloudcore.config.kubeedge.io/v1alpha1"; the keys are the same`,
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty": {"", "is empty; `cloudcore --minconfig` prints one to start from"},
		"a list": {
			"- a\n", "is not a mapping of keys to values; `cloudcore --minconfig` prints one to start from",
		},
		"no YAML":      {head + "modules: [\n", "not YAML: line 3: did not find expected node content"},
		"no kind":      {"apiVersion: x\n", `kind: is missing; want "CloudCore"`},
		"another kind": {"kind: Pod\n", `kind: "Pod" is not allowed; want "CloudCore"`},
		"edgecore": {
			"kind: EdgeCore\n", `kind: "EdgeCore" is not allowed; want "CloudCore": this file is for edgecore`,
		},
		"no version": {"kind: CloudCore\n", `apiVersion: is missing; want "cloudcore.config.kubeedge.io/v1alpha1"`},
		"a new version": {
			"kind: CloudCore\napiVersion: cloudcore.config.kubeedge.io/v1\n",
			`apiVersion: "cloudcore.config.kubeedge.io/v1" is not allowed; want "cloudcore.config.kubeedge.io/v1alpha1"`,
		},
		"unknown": {
			head + "modules:\n  cloudHub:\n    nodelimit: 5\n",
			`line 5: modules.cloudHub.nodelimit: no such key; did you mean "nodeLimit"?`,
		},
		"misplaced": {
			head + "modules:\n  advertiseAddress: [192.0.2.1]\n",
			"line 4: modules.advertiseAddress: no such key here; it belongs at modules.cloudHub.advertiseAddress",
		},
		"inlined": {
			head + "modules:\n  cloudHub:\n    quic:\n      prt: 1\n",
			`line 6: modules.cloudHub.quic.prt: no such key; did you mean "port"?`,
		},
		"in a list": {head + "modules:\n  cloudHub:\n    authorization:\n      modes:\n      - nod: {}\n",
			`line 7: modules.cloudHub.authorization.modes[0].nod: no such key; did you mean "node"?`},
		"twice": {
			head + "modules:\n  cloudHub:\n    nodeLimit: 1\n    nodeLimit: 2\n",
			"line 6: modules.cloudHub.nodeLimit: the key is there twice; keep one",
		},
		"a bad number": {
			head + "modules:\n  cloudHub:\n    nodeLimit: many\n",
			`line 5: modules.cloudHub.nodeLimit: "many" is not allowed; want a number, without quotes`,
		},
		"a large number": {
			head + "modules:\n  cloudHub:\n    nodeLimit: 3000000000\n",
			"line 5: modules.cloudHub.nodeLimit: 3000000000 is not allowed; want a whole number from -2147483648 to " +
				"2147483647",
		},
		"a number that is not hidden": {head + "modules:\n  cloudHub:\n    tokenRefreshDuration: 0\n",
			"line 5: modules.cloudHub.tokenRefreshDuration: 0 is not allowed; want 1 to 876000"},
		"a password": {
			head + "kubeAPIConfig:\n  master: ftp://admin:hunter2@192.0.2.1\n",
			`line 4: kubeAPIConfig.master: "ftp://admin:(hidden)@192.0.2.1" is not allowed; want the URL of kube-apiserver, such as https://192.0.2.1:6443`,
		},
		"several": {
			head + "commonConfig:\n  monitorServer: {bindAddress: here}\nmodules:\n  cloudHub:\n    " +
				"advertiseAddress:\n    - 192.0.2.1\n    - cloud.example.com\n  what: 1\n", `3 problems:
  line 4: commonConfig.monitorServer.bindAddress: "here" is not allowed; want an address and a port, such as 192.0.2.1:10000
  line 9: modules.cloudHub.advertiseAddress[1]: "cloud.example.com" is not allowed; want an IP address at which edges reach cloudcore; a name belongs in dnsNames
  line 10: modules.what: no such key; the nearest one in modules is "router"`,
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

func TestLoadFiles(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	_, _, err := Load(missing)
	want := "configuration " + missing + ": file does not exist; `cloudcore --minconfig > " + missing + "` makes one"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestChooseIP(t *testing.T) {
	network := func(text string) net.Addr {
		ip, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	for want, addrs := range map[string][]net.Addr{
		"127.0.0.1": {network("127.0.0.1/8"), network("fe80::1/64"), &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9)}},
		"192.0.2.1": {
			network("::1/128"), network("2001:db8::1/64"), network("192.0.2.1/24"), network("192.0.2.2/24"),
		},
		"2001:db8::1": {network("127.0.0.1/8"), network("2001:db8::1/64"), network("2001:db8::2/64")},
	} {
		if got := chooseIP(addrs); got != want {
			t.Errorf("%v: %s, want %s", addrs, got, want)
		}
	}
	if ip := HostIP(); net.ParseIP(ip) == nil {
		t.Errorf("HostIP = %q, want an IP address", ip)
	}
}

// TestRedacted: what is printed shows no password, and the configuration keeps it.
func TestRedacted(t *testing.T) {
	c := Default()
	c.KubeAPIConfig.Master = "https://admin:hunter2@192.0.2.1:6443"
	if got := c.Redacted().KubeAPIConfig.Master; got != "https://admin:(hidden)@192.0.2.1:6443" {
		t.Errorf("master shown as %s, want the password hidden", got)
	}
	if !strings.Contains(c.KubeAPIConfig.Master, "hunter2") {
		t.Errorf("master of the configuration itself = %s, want its password kept", c.KubeAPIConfig.Master)
	}
}
