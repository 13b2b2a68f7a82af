package agentconfig

import (
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// TestAPIAddress: serverAddress alone moves the kubelet's API, to the loopback too; without it a file of KubeEdge means
// what it did.
func TestAPIAddress(t *testing.T) {
	for name, c := range map[string]struct{ address, server, api, readOnly string }{
		"default":                       {"127.0.0.1", "", ":10250", "127.0.0.1:10255"},
		"loopback of IPv6":              {"::1", "", ":10250", "[::1]:10255"},
		"address":                       {"192.0.2.1", "", "192.0.2.1:10250", "192.0.2.1:10255"},
		"all":                           {"0.0.0.0", "", "0.0.0.0:10250", "0.0.0.0:10255"},
		"API on the loopback":           {"127.0.0.1", "127.0.0.1", "127.0.0.1:10250", "127.0.0.1:10255"},
		"API on the loopback of IPv6":   {"127.0.0.1", "::1", "[::1]:10250", "127.0.0.1:10255"},
		"API elsewhere":                 {"127.0.0.1", "192.0.2.1", "192.0.2.1:10250", "127.0.0.1:10255"},
		"API on the loopback, other on": {"0.0.0.0", "127.0.0.1", "127.0.0.1:10250", "0.0.0.0:10255"},
	} {
		cfg := v1alpha2.Default()
		own := &cfg.Modules.Edged
		own.TailoredKubeletConfig.Address, own.ServerAddress = c.address, c.server
		opts, err := EdgedOptions(cfg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if opts.API.Listen != c.api || opts.Listen != c.readOnly {
			t.Errorf("%s: the API at %q, the read-only port at %q; want %q and %q", name, opts.API.Listen, opts.Listen,
				c.api, c.readOnly)
		}
		var api string
		for _, p := range PreflightOptions(cfg).Ports {
			if p.Key == "port" {
				api = p.Address
			}
		}
		if api != c.api {
			t.Errorf("%s: preflight looks at %q, want %q", name, api, c.api)
		}
	}
}
