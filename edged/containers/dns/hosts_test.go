package dns

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + ".-b-more"
	for _, tc := range []struct {
		name             string
		pod              string
		spec             v1.PodSpec
		hostname, domain string
		err              string
	}{
		{name: "pod's name", pod: "web-0", hostname: "web-0"},
		{name: "hostname", pod: "web-0", spec: v1.PodSpec{Hostname: "own"}, hostname: "own"},
		{
			name:     "subdomain",
			pod:      "web-0",
			spec:     v1.PodSpec{Subdomain: "web"},
			hostname: "web-0",
			domain:   "web.shop.svc.cluster.local",
		},
		{
			name:     "both",
			pod:      "web-0",
			spec:     v1.PodSpec{Hostname: "own", Subdomain: "web"},
			hostname: "own",
			domain:   "web.shop.svc.cluster.local",
		},
		{name: "cut to 63", pod: long, hostname: strings.Repeat("a", 62)},
		{
			name:     "FQDN",
			pod:      "web-0",
			spec:     v1.PodSpec{Subdomain: "web", SetHostnameAsFQDN: ptr.To(true)},
			hostname: "web-0.web.shop.svc.cluster.local",
			domain:   "web.shop.svc.cluster.local",
		},
		{
			name:     "FQDN without domain",
			pod:      "web-0",
			spec:     v1.PodSpec{SetHostnameAsFQDN: ptr.To(true)},
			hostname: "web-0",
		},
		{
			name:     "FQDN of 64",
			pod:      strings.Repeat("a", 37),
			spec:     v1.PodSpec{Subdomain: "web", SetHostnameAsFQDN: ptr.To(true)},
			hostname: strings.Repeat("a", 37) + ".web.shop.svc.cluster.local",
			domain:   "web.shop.svc.cluster.local",
		},
		{
			name: "FQDN too long",
			pod:  strings.Repeat("a", 38),
			spec: v1.PodSpec{Subdomain: "web", SetHostnameAsFQDN: ptr.To(true)},
			err: "failed to construct FQDN from pod hostname and cluster domain, FQDN " + strings.Repeat("a", 38) +
				".web.shop.svc.cluster.local is too long (64 characters is the max, 65 characters requested)",
		},
		{
			name:     "override",
			pod:      "web-0",
			spec:     v1.PodSpec{Hostname: "own", Subdomain: "web", HostnameOverride: ptr.To("box.example")},
			hostname: "box.example",
		},
		{
			name: "bad override",
			pod:  "web-0",
			spec: v1.PodSpec{HostnameOverride: ptr.To("Box!")},
			err:  `pod HostnameOverride "Box!" is not a valid DNS subdomain`,
		},
		{
			name:     "override of 64",
			pod:      "web-0",
			spec:     v1.PodSpec{HostnameOverride: ptr.To(strings.Repeat("a", 61) + ".bc")},
			hostname: strings.Repeat("a", 61) + ".b",
		},
		{
			name:     "override cut at a dot",
			pod:      "web-0",
			spec:     v1.PodSpec{HostnameOverride: ptr.To(strings.Repeat("a", 62) + ".bc")},
			hostname: strings.Repeat("a", 62),
		},
		{
			name: "bad hostname",
			pod:  "web-0",
			spec: v1.PodSpec{Hostname: "a.b"},
			err:  `pod Hostname "a.b" is not a valid DNS label`,
		},
		{
			name: "bad subdomain",
			pod:  "web-0",
			spec: v1.PodSpec{Subdomain: "-"},
			err:  `pod Subdomain "-" is not a valid DNS label`,
		},
		{name: "host network", pod: "web-0", spec: v1.PodSpec{Hostname: "own", Subdomain: "web", HostNetwork: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := podWith(tc.spec)
			pod.Name = tc.pod
			hostname, domain, err := New(Config{ClusterDomain: "cluster.local"}).Hostname(pod)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || hostname != tc.hostname || domain != tc.domain {
				t.Errorf("got %q, %q, %v; want %q, %q", hostname, domain, err, tc.hostname, tc.domain)
			}
		})
	}
	pod := podWith(v1.PodSpec{Subdomain: "web"})
	if _, domain, err := New(Config{}).Hostname(pod); err != nil || domain != "web.shop.svc" {
		t.Errorf("without a cluster domain: %q, %v; want web.shop.svc", domain, err)
	}
}

const managed = `# Kubernetes-managed hosts file.
127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
fe00::0	ip6-localnet
fe00::0	ip6-mcastprefix
fe00::1	ip6-allnodes
fe00::2	ip6-allrouters
`

func TestHostsFile(t *testing.T) {
	nodeHosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(nodeHosts, []byte("127.0.0.1 localhost\n192.0.2.7 device\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	aliases := []v1.HostAlias{
		{IP: "127.0.0.1", Hostnames: []string{"foo.local", "bar.local"}},
		{IP: "10.1.2.3", Hostnames: []string{"foo.remote"}},
	}
	const aliasText = "\n# Entries added by HostAliases.\n127.0.0.1\tfoo.local\tbar.local\n10.1.2.3\tfoo.remote\n"
	for _, tc := range []struct {
		name string
		cfg  Config
		spec v1.PodSpec
		ips  []string
		want string
	}{
		{"plain", Config{}, v1.PodSpec{}, []string{"10.200.0.4"}, managed + "10.200.0.4\tweb-0\n"},
		{"no address yet", Config{}, v1.PodSpec{}, nil, managed},
		{
			"two addresses", Config{}, v1.PodSpec{}, []string{"10.200.0.4", "fd00::4"},
			managed + "10.200.0.4\tweb-0\nfd00::4\tweb-0\n",
		},
		{
			"subdomain", Config{ClusterDomain: "c.local"}, v1.PodSpec{Subdomain: "web"}, []string{"10.200.0.4"},
			managed + "10.200.0.4\tweb-0.web.shop.svc.c.local\tweb-0\n",
		},
		{"FQDN", Config{ClusterDomain: "c.local"}, v1.PodSpec{Subdomain: "web", SetHostnameAsFQDN: ptr.To(true)},
			[]string{"10.200.0.4"},
			managed + "10.200.0.4\tweb-0.web.shop.svc.c.local\tweb-0\n"},
		{
			"aliases", Config{}, v1.PodSpec{HostAliases: aliases}, []string{"10.200.0.4"},
			managed + "10.200.0.4\tweb-0\n" + aliasText,
		},
		{"host network", Config{HostsFile: nodeHosts}, v1.PodSpec{HostNetwork: true}, []string{"192.0.2.7"},
			"# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n192.0.2.7 device\n"},
		{"host network and aliases", Config{HostsFile: nodeHosts}, v1.PodSpec{HostNetwork: true, HostAliases: aliases},
			nil,
			"# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n192.0.2.7 device\n" + aliasText},
		{
			"node without names", Config{HostsFile: "/no/such/file"}, v1.PodSpec{HostNetwork: true}, nil,
			"# Kubernetes-managed hosts file (host network).\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old := syscall.Umask(0o077)
			defer syscall.Umask(old)
			dir := filepath.Join(t.TempDir(), "pod")
			path, err := New(tc.cfg).EnsureHosts(dir, podWith(tc.spec), tc.ips)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil || string(data) != tc.want {
				t.Errorf("%v\ngot:\n%s\nwant:\n%s", err, data, tc.want)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 ||
				path != filepath.Join(dir, "etc-hosts") {
				t.Errorf("%s: %v, %v; want etc-hosts in the pod's folder, mode 0644", path, info, err)
			}
		})
	}
}

func TestHostsFileIsWrittenWhenItDiffers(t *testing.T) {
	dir := t.TempDir()
	c, pod, ips := New(Config{}), podWith(v1.PodSpec{}), []string{"10.200.0.4"}
	stat := func() *syscall.Stat_t {
		path, err := c.EnsureHosts(dir, pod, ips)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t)
	}
	first := stat()
	path := filepath.Join(dir, "etc-hosts")
	if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if again := stat(); again.Mtim.Nano() != 1e9 {
		t.Errorf("written again without need, at %v; want the time %v",
			time.Unix(0, again.Mtim.Nano()), time.Unix(1, 0))
	}
	for name, wreck := range map[string]func() error{
		"same size":  func() error { return os.WriteFile(path, []byte(strings.Repeat("x", int(first.Size))), 0o644) },
		"larger":     func() error { return os.Truncate(path, 1<<40) }, // by a container; not to be read
		"half":       func() error { return os.Truncate(path, 5) },
		"unreadable": func() error { return os.Chmod(path, 0o600) },
	} {
		if err := wreck(); err != nil {
			t.Fatal(err)
		}
		if after := stat(); after.Size != first.Size || after.Mode != first.Mode || after.Ino != first.Ino {
			t.Errorf("%s: %+v, want size, mode and inode of %+v", name, after, first)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != managed+"10.200.0.4\tweb-0\n" {
			t.Errorf("%s: %s, %v; want the file as it was", name, data, err)
		}
	}
	ips = []string{"10.200.0.9"} // a new sandbox
	if after := stat(); after.Ino != first.Ino {
		t.Errorf("inode %d, want %d: containers that have the file mounted do not see a new one", after.Ino, first.Ino)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != managed+"10.200.0.9\tweb-0\n" {
		t.Errorf("%s, %v; want the new address", data, err)
	}
}

func TestHostsFileErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "etc-hosts")); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{}).EnsureHosts(dir, podWith(v1.PodSpec{}), nil); err == nil ||
		!strings.Contains(err.Error(), "is not a file") {
		t.Errorf("EnsureHosts where a link lies: %v, want is not a file", err)
	}
	if _, err := New(Config{}).EnsureHosts(t.TempDir(), podWith(v1.PodSpec{Hostname: "a.b"}), nil); err == nil {
		t.Error("EnsureHosts(hostname a.b) = nil, want an error")
	}
	if _, err := New(Config{HostsFile: dir}).EnsureHosts(t.TempDir(), podWith(v1.PodSpec{HostNetwork: true}),
		nil); err == nil || !strings.Contains(err.Error(), "names of the node") {
		t.Errorf("EnsureHosts: %v, want an error with names of the node", err)
	}
}
