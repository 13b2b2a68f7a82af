package conformance

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// networkRows are about names, addresses and ports.
func networkRows() []row {
	return slices.Concat(hostnameRows(), dnsRows(), portRows())
}

func hostnameRows() []row {
	return []row{
		{
			name: "hostname",
			spec: `
{hostname: web, subdomain: sub, hostAliases: [{ip: 192.0.2.9, hostnames: [one.example, two.example]}], containers: [{name: main}]}
`,
			check: func(p *pod) {
				ip := p.running().Status.PodIP
				p.says("main", "hostname; cat /proc/sys/kernel/hostname; grep "+ip+" /etc/hosts; tail -3 /etc/hosts",
					"web\nweb\n"+ip+"\tweb.sub."+p.node.name+".svc.cluster.local\tweb\n\n# Entries added by "+
						"HostAliases.\n192.0.2.9\tone.example\ttwo.example")
			},
		},
		{
			name: "hostname-default",
			spec: `containers: [{name: main}]`,
			check: func(p *pod) {
				ip := p.running().Status.PodIP
				p.says("main", "hostname; head -1 /etc/hosts; tail -1 /etc/hosts",
					p.name+"\n# Kubernetes-managed hosts file.\n"+ip+"\t"+p.name)
			},
		},
		{
			name: "hostname-fqdn",
			spec: `{hostname: web, subdomain: sub, setHostnameAsFQDN: true, containers: [{name: main}]}`,
			check: func(p *pod) {
				p.says("main", "hostname", "web.sub."+p.node.name+".svc.cluster.local")
			},
		},
		{
			name: "hostname-fqdn-too-long",
			spec: `{hostname: web, subdomain: a-subdomain-of-many-letters-that-fill-it, setHostnameAsFQDN: true, containers: [{name: main}]}`,
			check: func(p *pod) {
				p.event("FailedCreatePodSandBox",
					"failed to construct FQDN from pod hostname and cluster domain, FQDN "+
						"web.a-subdomain-of-many-letters-that-fill-it."+p.node.name+
						".svc.cluster.local is too long (64 characters is the max")
			},
		},
		{
			name: "hostname-override",
			spec: `{hostnameOverride: other.example, containers: [{name: main}]}`,
			check: func(p *pod) {
				ip := p.running().Status.PodIP
				p.says("main", "hostname; tail -1 /etc/hosts", "other.example\n"+ip+"\tother.example")
			},
		},
	}
}

func dnsRows() []row {
	const show = "cat /etc/resolv.conf"
	return []row{
		{
			name: "dns-cluster-first",
			spec: `{containers: [{name: main}]}`,
			check: func(p *pod) {
				out := p.resolv("grep '^[no]' /etc/resolv.conf; grep ^search /etc/resolv.conf", "nameserver 10.96.0.10")
				if !strings.Contains(out, "options ndots:5") ||
					!strings.Contains(out, "search "+p.node.name+".svc.cluster.local svc.cluster.local cluster.local") {
					p.Errorf("resolv.conf = %s, want ndots:5 and the search domains of namespace %s", out, p.node.name)
				}
			},
		},
		{
			name: "dns-none",
			spec: `
dnsPolicy: None
dnsConfig: {nameservers: [192.0.2.53, 192.0.2.54], searches: [a.example, b.example], options: [{name: ndots, value: "2"}, {name: edns0}]}
containers: [{name: main}]
`,
			check: func(p *pod) {
				p.says("main", show,
					"search a.example b.example\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions ndots:2 edns0")
			},
		},
		{
			name: "dns-default",
			spec: `{dnsPolicy: Default, dnsConfig: {options: [{name: timeout, value: "3"}]}, containers: [{name: main}]}`,
			check: func(p *pod) {
				if out := p.resolv(show, "timeout:3"); strings.Contains(out, "10.96.0.10") ||
					strings.Contains(out, "cluster.local") {
					p.Errorf("resolv.conf = %s, want nothing of the cluster", out)
				}
			},
		},
		{
			name: "dns-host-network",
			spec: `{hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet, containers: [{name: main}]}`,
			check: func(p *pod) {
				p.resolv(show, "nameserver 10.96.0.10")
				plain := p.second("plain", `{hostNetwork: true, containers: [{name: main}]}`)
				plain.running()
				if out := plain.exec("main", show); strings.Contains(out, "10.96.0.10") {
					p.Errorf("resolv.conf of ClusterFirst on the host network = %q, want no 10.96.0.10", out)
				}
				plain.delete()
			},
		},
		{
			name: "dns-limits",
			spec: `
dnsConfig: {nameservers: [192.0.2.1, 192.0.2.2, 192.0.2.3]}
containers: [{name: main}]
`,
			check: func(p *pod) {
				out := p.resolv("grep ^nameserver /etc/resolv.conf", "10.96.0.10")
				if want := "nameserver 10.96.0.10\nnameserver 192.0.2.1\nnameserver 192.0.2.2"; out != want {
					p.Errorf("%s, want %s", out, want)
				}
				p.event("DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, "+
					"the applied nameserver line is: 10.96.0.10 192.0.2.1 192.0.2.2")
			},
		},
	}
}

// resolv returns what a script prints once the pod runs, which has to have a text.
func (p *pod) resolv(script, text string) string {
	p.Helper()
	p.running()
	out := p.exec("main", script)
	if !strings.Contains(out, text) {
		p.Errorf("%s: %s; want %q in it", script, out, text)
	}
	return out
}

func portRows() []row {
	return []row{
		{
			name: "host-port",
			spec: `containers: [{name: main, ports: [{containerPort: 80}]}]`,
			check: func(p *pod) {
				p.running()
				port, err := daemon.FreePort()
				env.Must(p, err)
				for _, ip := range []string{"", "hostIP: 127.0.0.1, "} {
					web := p.second(fmt.Sprintf("web%d", len(ip)), fmt.Sprintf(
						`containers: [{name: main, image: "edgecore.local/demo:1", command: [httpd, -f, -h, /www], ports: [{containerPort: 80, %shostPort: %d}]}]`, ip, port))
					got := web.running()
					at := got.Status.HostIP
					if ip != "" {
						at = "127.0.0.1"
					}
					p.until("the port answers", func() error {
						return page(fmt.Sprintf("http://%s/", net.JoinHostPort(at, fmt.Sprint(port))))
					})
					second := p.second("taken",
						fmt.Sprintf(`containers: [{name: main, ports: [{containerPort: 80, %shostPort: %d}]}]`, ip,
							port))
					second.rejected("NodePorts", "node(s) didn't have free ports for the requested pod ports")
					second.delete()
					web.delete()
				}
			},
		},
	}
}

// page fetches the demo page.
func page(url string) error {
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && string(body) != "edgecore demo\n" {
		err = fmt.Errorf("%s: %q", url, body)
	}
	return err
}
