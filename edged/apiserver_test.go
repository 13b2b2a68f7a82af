package edged

import (
	"crypto/tls"
	"slices"
	"testing"

	"github.com/edgecore-io/edgecore/edged/auth"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// TestAPIIsOpenedForSomebody: no port where nobody could be let in.
func TestAPIIsOpenedForSomebody(t *testing.T) {
	const listen = "127.0.0.1:0"
	for name, tc := range map[string]struct {
		opts Options
		want bool
	}{
		"no cloud, no CA":       {Options{API: APIOptions{Listen: listen}}, false},
		"a cloud":               {Options{API: APIOptions{Listen: listen}, Node: &node.Options{}}, true},
		"a CA":                  {Options{API: APIOptions{Listen: listen, ClientCA: "/ca.crt"}}, true},
		"anonymous":             {Options{API: APIOptions{Listen: listen, Auth: auth.Options{Anonymous: true}}}, true},
		"a cloud, switched off": {Options{Node: &node.Options{}}, false},
	} {
		tc.opts.RootDir, tc.opts.NodeName, tc.opts.API.Port = t.TempDir(), "n1", 10250
		e := &Edged{opts: tc.opts, health: &health.Registry{}, addresses: node.NewAddresses("", "")}
		e.api = e.newAPI()
		if got := e.api != nil; got != tc.want {
			t.Errorf("%s: there is a port: %v, want %v", name, got, tc.want)
		}
		if port := e.daemonEndpoints().KubeletEndpoint.Port; (port == 10250) != tc.want {
			t.Errorf("%s: port %d, want 10250: %v", name, port, tc.want)
		}
		e.api.wake() // which nobody minds, with a port or without
		e.api.wake()
		if e.api == nil {
			continue
		}
		if cert, err := e.api.certificate.Get(&tls.ClientHelloInfo{}); err != nil || cert.Leaf.Subject.CommonName != "n1@edgecore" {
			t.Errorf("%s: certificate of %v, %v; want n1@edgecore", name, cert, err)
		}
	}
}

// TestAPIRoutesBySwitch: what is switched off is not there.
func TestAPIRoutesBySwitch(t *testing.T) {
	has := func(o APIOptions, pattern string) bool {
		e := &Edged{opts: Options{API: o}}
		return slices.ContainsFunc(e.apiRoutes(), func(r server.Route) bool { return r.Pattern == pattern })
	}
	for pattern, o := range map[string]APIOptions{
		"/configz": {Config: func() any { return nil }}, "/logs/{path...}": {SystemLogs: true}, "/debug/pprof/": {Profiling: true}, "/debug/flags/v": {Flags: true},
	} {
		if has(APIOptions{}, pattern) || !has(o, pattern) {
			t.Errorf("%s: %v without, %v with; want false, true", pattern, has(APIOptions{}, pattern), has(o, pattern))
		}
	}
}
