package dns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

const nodeConf = `# made by the node's resolver
nameserver 192.0.2.1
nameserver 192.0.2.2 # the other
search lan.example. home
options timeout:2 edns0
`

func write(t *testing.T, data string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func podWith(spec v1.PodSpec) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "u-1"}, Spec: spec}
}

func TestResolve(t *testing.T) {
	cluster := Config{
		ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local", ResolvConf: write(t, nodeConf),
	}
	alone := Config{ResolvConf: cluster.ResolvConf}
	node := &runtimeapi.DNSConfig{
		Servers: []string{"192.0.2.1", "192.0.2.2"}, Searches: []string{"lan.example", "home"},
		Options: []string{"timeout:2", "edns0"},
	}
	inCluster := &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Options: []string{"ndots:5"},
		Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan.example", "home"}}
	missing := Warning{
		"MissingClusterDNS",
		`pod: "web-0_shop(u-1)". kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`,
	}
	many := func(n int, format string) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		return list
	}
	searches := many(40, "s%d.example")
	long := many(20, strings.Repeat("x", 120)+"%02d.example")
	for _, tc := range []struct {
		name     string
		cfg      Config
		spec     v1.PodSpec
		want     *runtimeapi.DNSConfig
		warnings []Warning
		ips      []string
	}{
		{"default", cluster, v1.PodSpec{DNSPolicy: v1.DNSDefault}, node, nil, nil},
		{"cluster first", cluster, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, inCluster, nil, nil},
		{"unset", cluster, v1.PodSpec{}, inCluster, nil, nil},
		{"cluster first on the host network", cluster, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst, HostNetwork: true},
			node, nil, nil},
		{"with host net", cluster, v1.PodSpec{DNSPolicy: v1.DNSClusterFirstWithHostNet, HostNetwork: true}, inCluster,
			nil, nil},
		{"no cluster DNS", alone, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, node, []Warning{missing}, nil},
		{"no cluster DNS with host net", alone, v1.PodSpec{DNSPolicy: v1.DNSClusterFirstWithHostNet, HostNetwork: true},
			node, []Warning{missing}, nil},
		{"no cluster DNS on the host network", alone, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst, HostNetwork: true},
			node, nil, nil},
		{
			"no cluster at all", Config{ResolvConf: cluster.ResolvConf, Standalone: true},
			v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}, node, nil, nil,
		},
		{
			"no cluster domain", Config{ClusterDNS: []string{"10.96.0.10"}, ResolvConf: cluster.ResolvConf},
			v1.PodSpec{},
			&runtimeapi.DNSConfig{
				Servers: []string{"10.96.0.10"}, Options: []string{"ndots:5"},
				Searches: []string{"lan.example", "home"},
			}, nil, nil,
		},
		{
			"none", cluster, v1.PodSpec{
				DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{
					Nameservers: []string{"1.2.3.4"}, Searches: []string{"a"},
					Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}, {Name: "edns0"}},
				},
			},
			&runtimeapi.DNSConfig{
				Servers: []string{"1.2.3.4"}, Searches: []string{"a"}, Options: []string{"ndots:2", "edns0"},
			}, nil, nil,
		},
		{
			"own settings", cluster, v1.PodSpec{
				DNSPolicy: v1.DNSDefault, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "1.2.3.4"},
					Searches: []string{"home", "own"},
					Options:  []v1.PodDNSConfigOption{{Name: "timeout", Value: ptr.To("5")}, {Name: "single-request"}}},
			},
			&runtimeapi.DNSConfig{
				Servers:  []string{"192.0.2.1", "192.0.2.2", "1.2.3.4"},
				Searches: []string{"lan.example", "home", "own"},
				Options:  []string{"timeout:5", "edns0", "single-request"},
			}, nil, nil,
		},
		{
			"too many servers", cluster, v1.PodSpec{
				DNSPolicy: v1.DNSDefault, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2"}},
			},
			&runtimeapi.DNSConfig{Servers: []string{"192.0.2.1", "192.0.2.2", "1.1.1.1"}, Searches: node.Searches,
				Options: node.Options},
			[]Warning{
				{
					"DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the " +
						"applied nameserver line is: 192.0.2.1 192.0.2.2 1.1.1.1",
				},
			}, nil,
		},
		{
			"too many searches", alone, v1.PodSpec{
				DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{
					Nameservers: []string{"1.1.1.1"}, Searches: searches,
				},
			},
			&runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: searches[:32]},
			[]Warning{
				{
					"DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the " +
						"applied search line is: " + strings.Join(searches[:32], " "),
				},
			}, nil,
		},
		{
			"searches too long", alone, v1.PodSpec{
				DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: long},
			},
			&runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: long[:15]}, // 15 * 130 + 14 <= 2048
			[]Warning{
				{
					"DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the " +
						"applied search line is: " + strings.Join(long[:15], " "),
				},
			}, nil,
		},
		{
			"no file wanted", Config{}, v1.PodSpec{DNSPolicy: v1.DNSDefault},
			&runtimeapi.DNSConfig{Servers: []string{"127.0.0.1"}, Searches: []string{"."}}, nil, nil,
		},
		{
			"no file wanted on a node of two families", Config{}, v1.PodSpec{DNSPolicy: v1.DNSDefault},
			&runtimeapi.DNSConfig{Servers: []string{"::1", "127.0.0.1"}, Searches: []string{"."}}, nil,
			[]string{"2001:db8::1", "192.0.2.9"},
		},
		{
			"a search path that is too long", alone, v1.PodSpec{
				DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{
					Nameservers: []string{"1.1.1.1"}, Searches: []string{"a", strings.Repeat("x", 254), "b"},
				},
			},
			&runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"a", "b"}},
			[]Warning{
				{
					"DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the " +
						"applied search line is: a b",
				},
			}, nil,
		},
		{
			"no file wanted in a cluster", Config{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "c"}, v1.PodSpec{},
			&runtimeapi.DNSConfig{
				Servers: []string{"10.96.0.10"}, Options: []string{"ndots:5"},
				Searches: []string{"shop.svc.c", "svc.c", "c"},
			}, nil, nil,
		},
		{
			"no file on the node", Config{ResolvConf: "/no/such/file"}, v1.PodSpec{DNSPolicy: v1.DNSDefault},
			&runtimeapi.DNSConfig{Searches: []string{"."}},
			[]Warning{
				{
					"DNSConfigForming", "/no/such/file does not exist: the pod has no name servers. Make the file, " +
						"or set resolvConf to another, and start the pod again.",
				},
			}, nil,
		},
		{"no file on the node in a cluster", Config{ClusterDNS: []string{"10.96.0.10"}, ResolvConf: "/no/such/file"},
			v1.PodSpec{},
			&runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Options: []string{"ndots:5"}}, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, warnings, err := New(tc.cfg).Resolve(podWith(tc.spec), tc.ips)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("configuration mismatch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.warnings, warnings); diff != "" {
				t.Errorf("warnings mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBothWarnings: to have no cluster DNS does not hide that settings are left out.
// TestServersOfTheNodeOnly: a pod with its own network does not get servers that only the node can reach, unless it has
// no other. It gets those behind systemd-resolved.
func TestServersOfTheNodeOnly(t *testing.T) {
	const router = "nameserver fe80::29c:2ff:fea9:fdd0%2\nnameserver fe80::1%eth0\nnameserver fe80::1\n" +
		"nameserver 192.0.2.53\n"
	const upstream = "nameserver 127.0.0.1\nnameserver fe80::1%2\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n"
	omitted := func(which, applied string) string {
		return "Nameservers " + which + " have been omitted: a link-local or loopback address of the node leads " +
			"nowhere in a pod with its own network. The applied nameserver line is: " + applied
	}
	for name, tc := range map[string]struct {
		conf     string
		resolved string
		spec     v1.PodSpec
		want     []string
		warning  string
	}{
		"link-local": {
			router, "", v1.PodSpec{}, []string{"192.0.2.53"},
			omitted("fe80::29c:2ff:fea9:fdd0%2 fe80::1%eth0 fe80::1", "192.0.2.53"),
		},
		"link-local, and more than three others": {
			router + "nameserver 192.0.2.54\nnameserver 192.0.2.55\nnameserver 192.0.2.56\n", "", v1.PodSpec{},
			[]string{"192.0.2.53", "192.0.2.54", "192.0.2.55"},
			omitted("fe80::29c:2ff:fea9:fdd0%2 fe80::1%eth0 fe80::1", "192.0.2.53 192.0.2.54 192.0.2.55"),
		},
		"on the node's network": {
			router, "", v1.PodSpec{HostNetwork: true},
			[]string{"fe80::29c:2ff:fea9:fdd0%2", "fe80::1%eth0", "fe80::1"}, "Nameserver limits were exceeded",
		},
		"nothing else": {
			"nameserver fe80::1%eth0\nnameserver ::1\n", "", v1.PodSpec{}, []string{"fe80::1%eth0", "::1"}, "",
		},
		"loopback": {
			"nameserver 127.0.0.1\nnameserver 192.0.2.1\n", "", v1.PodSpec{}, []string{"192.0.2.1"},
			omitted("127.0.0.1", "192.0.2.1"),
		},
		"IPv4 link-local": {
			"nameserver 169.254.20.10\n", "", v1.PodSpec{}, []string{"169.254.20.10"}, "",
		},
		"systemd-resolved": {
			"nameserver 127.0.0.53\n", upstream, v1.PodSpec{}, []string{"192.0.2.1", "192.0.2.2"}, "",
		},
		"systemd-resolved, on the node's network": {
			"nameserver 127.0.0.53\n", upstream, v1.PodSpec{HostNetwork: true}, []string{"127.0.0.53"}, "",
		},
		"systemd-resolved without servers": {
			"nameserver 127.0.0.53\n", "# none\n", v1.PodSpec{}, []string{"127.0.0.53"}, "",
		},
		"systemd-resolved that does not run": {
			"nameserver 127.0.0.53\n", "", v1.PodSpec{}, []string{"127.0.0.53"}, "",
		},
		"another server on the loopback": {
			"nameserver 127.0.0.1\n", upstream, v1.PodSpec{}, []string{"127.0.0.1"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{ResolvConf: write(t, tc.conf), Resolved: filepath.Join(t.TempDir(), "none"), Standalone: true}
			if tc.resolved != "" {
				cfg.Resolved = write(t, tc.resolved)
			}
			got, warnings, err := New(cfg).Resolve(podWith(tc.spec), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Servers); diff != "" {
				t.Errorf("servers (-want +got):\n%s", diff)
			}
			var texts []string
			for _, w := range warnings {
				if w.Reason == ReasonForming {
					texts = append(texts, w.Message)
				}
			}
			if len(texts) == 0 && tc.warning == "" {
				return
			}
			if len(texts) == 0 || tc.warning == "" || !strings.HasPrefix(texts[0], tc.warning) {
				t.Errorf("warnings %q, want %q", texts, tc.warning)
			}
		})
	}
}

func TestBothWarnings(t *testing.T) {
	spec := v1.PodSpec{DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"}}}
	_, warnings, err := New(Config{ResolvConf: write(t, "")}).Resolve(podWith(spec), nil)
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[0].Message, "ClusterDNS") ||
		!strings.Contains(warnings[1].Message, "Nameserver limits") {
		t.Errorf("warnings %v, %v; want ClusterDNS and Nameserver limits", warnings, err)
	}
}

func TestResolveErrors(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("../run/stub-resolv.conf", link); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		spec       v1.PodSpec
		want       string
	}{
		{
			"link to nothing yet", link, v1.PodSpec{},
			link + " leads to ../run/stub-resolv.conf, which does not exist (yet); start the node's resolver",
		},
		{"folder", dir, v1.PodSpec{}, "is a directory; repair the file, or set resolvConf to another"},
		{
			"garbage", write(t, "\x00\x01\xfe\n\xff"), v1.PodSpec{},
			`line 1: "\x00\x01\xfe" is not a resolver setting; repair the file`,
		},
		{
			"a web page", write(t, "<html>\n<body>Login</body>"), v1.PodSpec{},
			`line 1: "<html>" is not a resolver setting`,
		},
		{"no address", write(t, "search a\nnameserver\n"), v1.PodSpec{}, "line 2: nameserver without an address"},
		{
			"a name", write(t, "nameserver dns.example\n"), v1.PodSpec{},
			`line 1: nameserver "dns.example" is not an IP address`,
		},
		{"too large", write(t, strings.Repeat("#\n", 1<<20)), v1.PodSpec{}, "is larger than 1048576 bytes"},
		{
			"none without servers", "", v1.PodSpec{DNSPolicy: v1.DNSNone},
			"dnsPolicy None needs at least one name server",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := New(Config{ResolvConf: tc.path}).Resolve(podWith(tc.spec), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestParseResolvConf(t *testing.T) {
	for _, tc := range []struct {
		name, data string
		want       *runtimeapi.DNSConfig
	}{
		{"empty", "", &runtimeapi.DNSConfig{}},
		{"comments", "# a\n; b\n\n   # c", &runtimeapi.DNSConfig{}},
		{"no newline at the end", "nameserver 1.1.1.1", &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}}},
		{
			"DOS lines and tabs", "nameserver\t1.1.1.1\r\nsearch\ta b\r\n",
			&runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"a", "b"}},
		},
		{
			"IPv6 with a zone", "nameserver fe80::1%eth0\nnameserver 2001:db8::1",
			&runtimeapi.DNSConfig{Servers: []string{"fe80::1%eth0", "2001:db8::1"}},
		},
		{
			"one bad of two", "nameserver dns\nnameserver 1.1.1.1\nwhat is this",
			&runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}},
		},
		{"last search", "search a b\nsearch c. c . \x01", &runtimeapi.DNSConfig{Searches: []string{"c"}}},
		{"domain after search", "search a b\ndomain d e", &runtimeapi.DNSConfig{Searches: []string{"a", "b"}}},
		{"domain alone", "domain d", &runtimeapi.DNSConfig{}},
		{"dot alone", "nameserver 1.1.1.1\nsearch .", &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}}},
		{"empty search", "search a\nsearch", &runtimeapi.DNSConfig{}},
		{
			"options add up", "options ndots:1 rotate\noptions ndots:3",
			&runtimeapi.DNSConfig{Options: []string{"ndots:3", "rotate"}},
		},
		{"sortlist alone", "sortlist 1.2.3.0/24", &runtimeapi.DNSConfig{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseResolvConf([]byte(tc.data))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("ParseResolvConf mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzResolvConf checks that what comes out can be written as a file, and is read back as the same.
func FuzzResolvConf(f *testing.F) {
	f.Add([]byte(nodeConf))
	f.Add([]byte("options " + strings.Repeat("a ", 32<<10)))
	f.Add([]byte("search " + strings.Repeat("a ", 32<<10)))
	f.Add([]byte(strings.Repeat("search a\n", 6_000)))
	f.Add([]byte(strings.Repeat("nameserver ::1\n", 4_000)))
	f.Add([]byte("nameserver dns\nnameserver ::1%a\ndomain x.\noptions a:b a:c #\n;"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got *runtimeapi.DNSConfig
		var err error
		// A word of 1 byte becomes a string of 16, in lists that double, more than once.
		membound.Check(t, membound.Linear(len(data), 256), func() { got, err = ParseResolvConf(data) })
		if err != nil {
			return
		}
		var b strings.Builder
		for _, s := range got.Servers {
			fmt.Fprintf(&b, "nameserver %s\n", s)
		}
		fmt.Fprintf(&b, "search %s\noptions %s\n", strings.Join(got.Searches, " "), strings.Join(got.Options, " "))
		again, err := ParseResolvConf([]byte(b.String()))
		if err != nil {
			t.Fatalf("ParseResolvConf(%q): %v, want no error", b.String(), err)
		}
		if diff := cmp.Diff(got, again, protocmp.Transform()); diff != "" {
			t.Errorf("%q read back mismatch (-want +got):\n%s", b.String(), diff)
		}
	})
}
