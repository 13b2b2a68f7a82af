package edgehub

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/proxy"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

func TestDestinations(t *testing.T) {
	for _, c := range []struct {
		group, source, operation, parent string
		want                             destination
	}{
		{"resource", "edgecontroller", "insert", "", destination{module: "metamanager"}},
		{"resource", "dynamiccontroller", "update", "", destination{module: "metamanager"}},
		{"resource", "edgecontroller", "response", "p", destination{answer: true}},
		{"resource", "edged", "response", "p", destination{answer: true}},
		{"func", "x", "start", "", destination{module: "metamanager"}},
		{"func", "x", "response", "p", destination{answer: true}},
		{"twin", "devicecontroller", "update", "", destination{module: "twin"}},
		{"twin", "devicecontroller", "response", "p", destination{answer: true}},
		{"user", "router_eventbus", "publish", "", destination{module: "eventbus"}},
		{"user", "router_servicebus", "POST", "", destination{module: "servicebus"}},
		{"user", "router_servicebus", "POST", "p", destination{answer: true}},
		{"taskmanager", "taskmanager", "Upgrade", "", destination{module: "taskmanager"}},
		{"user", "somebody", "publish", "", destination{problem: "no module receives its group"}},
		{"", "", "", "", destination{problem: "no module receives its group"}},
		{"resource", "edged", "delete", "", destination{problem: "the source is a module of the device"}},
		{"resource", "websocket", "connect", "", destination{problem: "the operation is only for messages within a " +
			"device"}},
		{"resource", "x", "unhold-upgrade", "", destination{problem: "the operation is only for messages within a " +
			"device"}},
		{"resource", "x", "ping", "", destination{problem: "the operation is only for the connection itself"}},
	} {
		m := &model.Message{
			Header: model.Header{ID: "i", ParentID: c.parent}, Route: model.Route{Group: c.group, Source: c.source,
				Operation: c.operation},
		}
		if diff := cmp.Diff(c.want, destinationOf(m), cmp.AllowUnexported(destination{})); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
	}
}

func TestLate(t *testing.T) {
	answer := func(change func(*model.Message)) *model.Message {
		m := request("default/configmap/a").Respond(json.RawMessage(`{"kind":"ConfigMap"}`))
		m.Route.Source, m.Route.Group, m.Header.ResourceVersion = "edgecontroller", "resource", "77"
		change(m)
		return m
	}
	m := answer(func(*model.Message) {})
	want := *m
	want.Header.ParentID = ""
	if diff := cmp.Diff(&want, unawaitedAnswer(m)); diff != "" || m.Header.ParentID == "" {
		t.Errorf("(-want +got) %s", diff)
	}
	for name, change := range map[string]func(*model.Message){
		"no version":     func(m *model.Message) { m.Header.ResourceVersion = "" },
		"a pod patch":    func(m *model.Message) { m.Route.Resource = "default/podpatch/a" },
		"a token":        func(m *model.Message) { m.Route.Resource = "default/serviceaccounttoken/a" },
		"no resource":    func(m *model.Message) { m.Route.Resource = "" },
		"all of a type":  func(m *model.Message) { m.Route.Resource = "default/secret" },
		"an error":       func(m *model.Message) { m.Route.Operation = "error" },
		"another group":  func(m *model.Message) { m.Route.Group = "user" },
		"the cluster CA": func(m *model.Message) { m.Route.Resource = "k8s/ca.crt" },
	} {
		if news := unawaitedAnswer(answer(change)); news != nil {
			t.Errorf("late with %s = %+v, want nil", name, news)
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	var r requests
	for i := range 3 * maxRequests {
		m := request(fmt.Sprintf("default/secret/%d", i))
		m.Header.ID = fmt.Sprint(i)
		if !r.add(m) {
			t.Fatalf("add of request %d = false, want true", i)
		}
		if i%2 == 0 {
			r.forget(m.Header.ID)
		}
	}
	left := r.drain()
	if len(left) == 0 || len(left) > maxRequests || left[len(left)-1].Header.ID != fmt.Sprint(3*maxRequests-1) {
		t.Errorf("%d requests are left, want 1 to %d with the newest", len(left), maxRequests)
	}
	if taken, left := r.add(request("a/b/c")), r.drain(); taken || len(left) != 0 {
		t.Errorf("add after the end = %v, left %v; want false and none", taken, left)
	}
}

func TestSettings(t *testing.T) {
	base := config(wiretest.Files{CA: "ca", Cert: "cert", Key: "key"}, "cloud:10000")
	quic := base
	quic.Quic = v1alpha2.Transport{Enable: true, Server: "cloud:10001", HandshakeTimeout: 30, WriteDeadline: 15}
	quic.WebSocket.Enable = false
	unset := quic
	unset.WebSocket.Server = "127.0.0.1:10000"
	for name, c := range map[string]struct {
		config v1alpha2.EdgeHub
		want   []string
	}{
		"WebSocket": {
			base, []string{"wss://cloud:10000/e632aba927ea4ac2b575ec1603d56f10/edge-1/events 30s"},
		},
		"QUIC first": {
			quic, []string{
				"quic://cloud:10001/e632aba927ea4ac2b575ec1603d56f10/edge-1/events 8s",
				"wss://cloud:10000/e632aba927ea4ac2b575ec1603d56f10/edge-1/events 30s",
			},
		},
		"QUIC, and no address for a WebSocket": {
			unset, []string{
				"quic://cloud:10001/e632aba927ea4ac2b575ec1603d56f10/edge-1/events 8s",
				"wss://cloud:10000/e632aba927ea4ac2b575ec1603d56f10/edge-1/events 30s",
			},
		},
	} {
		s, err := settingsOf("edge-1", c.config)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, t := range s.targets {
			got = append(got, t.url+" "+t.handshake.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: targets (-want +got):\n%s", name, diff)
		}
		if s.targets[0].limits.ReadTimeout > 2*s.heartbeat || s.rate != 30 || s.burst != 60 {
			t.Errorf("%s: %+v, want a read timeout of at most %v, rate 30 and burst 60", name, s, 2*s.heartbeat)
		}
	}
	free := base
	free.MessageQPS = 0
	if s, err := settingsOf("edge-1", free); err != nil || s.rate != rate.Inf {
		t.Errorf("messageQPS 0: %v, %v; want no limit", s.rate, err)
	}
	for name, change := range map[string]func(*v1alpha2.EdgeHub){
		"heartbeat": func(h *v1alpha2.EdgeHub) { h.Heartbeat = 0 },
		"server":    func(h *v1alpha2.EdgeHub) { h.WebSocket.Server = "" },
	} {
		bad := base
		change(&bad)
		if _, err := settingsOf("edge-1", bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("settingsOf with a bad %s = %v, want an error that names it", name, err)
		}
	}
	if _, err := settingsOf("", base); err == nil {
		t.Error("settingsOf a node without a name = nil, want an error")
	}
}

// TestExplain: each reason names the cause and what to do.
func TestExplain(t *testing.T) {
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	at := func(days int) time.Time { return now.AddDate(0, 0, days) }
	fresh := &x509.Certificate{NotBefore: at(-1), NotAfter: at(1)}
	gone := &x509.Certificate{NotBefore: at(-9), NotAfter: at(-2)}
	dial := func(err error) error {
		return fmt.Errorf("connect to wss://x: %w", &net.OpError{Op: "dial", Net: "tcp", Err: err})
	}
	expired := func(c *x509.Certificate) error { return x509.CertificateInvalidError{Cert: c, Reason: x509.Expired} }
	for name, c := range map[string]struct {
		err  error
		own  *x509.Certificate
		kind string
		has  []string
	}{
		"no file": {&fileError{"/etc/kubeedge/certs/server.crt", fs.ErrNotExist}, nil, "no_certificate",
			[]string{"/etc/kubeedge/certs/server.crt", "edgecore join"}},
		"broken file": {
			&fileError{"/etc/c.crt", errors.New("no PEM")}, nil, "no_certificate",
			[]string{"/etc/c.crt", "no PEM", "edgecore join"},
		},
		"name": {dial(&net.DNSError{Err: "no such host", Name: "cloud.example", IsNotFound: true}),
			fresh, "dns", []string{"cloud.example", "/etc/resolv.conf"}},
		"refused": {dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), fresh, "connection_refused",
			[]string{"cloud.example:10000", "cloudcore", "edgeHub.websocket.server"}},
		"no route": {dial(os.NewSyscallError("connect", syscall.ENETUNREACH)), fresh, "unreachable",
			[]string{"cloud.example:10000", "network is unreachable", "routes"}},
		"no answer": {
			dial(context.DeadlineExceeded), fresh, "timeout", []string{"cloud.example:10000", "30s", "firewalls"},
		},
		"reset": {dial(syscall.ECONNRESET), fresh, "reset", []string{"cloud.example:10000"}},
		"reset, expired": {
			dial(syscall.ECONNRESET), gone, "certificate_expired", []string{"2026-05-30", "edgecore join"},
		},
		"other CA": {
			dial(x509.UnknownAuthorityError{}), fresh, "untrusted", []string{"ca.crt", "edgecore join"},
		},
		"other name": {
			dial(x509.HostnameError{
				Certificate: &x509.Certificate{
					DNSNames: []string{"a.example"}, IPAddresses: []net.IP{net.IPv4(1, 2, 3, 4)},
				}, Host: "x",
			}), fresh, "wrong_name", []string{
				"cloud.example", "a.example, 1.2.3.4", "advertiseAddress",
			},
		},
		"cloud's ended": {
			dial(expired(gone)), fresh, "untrusted", []string{"2026-05-30", "renew it in the cloud"},
		},
		"clock behind": {dial(expired(&x509.Certificate{NotBefore: at(3), NotAfter: at(9)})), fresh, "clock",
			[]string{"clock is not set", "2026-06-04", "NTP"}},
		"own ended": {dial(errors.New("remote error: tls: expired certificate")), gone, "certificate_expired",
			[]string{"2026-05-30", "edgecore join"}},
		"own not yet": {
			dial(errors.New("remote error: tls: bad certificate")),
			&x509.Certificate{NotBefore: at(1), NotAfter: at(2)}, "clock", []string{"2026-06-02", "NTP"},
		},
		"own rejected": {dial(errors.New("remote error: tls: unknown certificate authority")), fresh, "rejected",
			[]string{"unknown certificate authority", "edgecore join"}},
		"TLS": {dial(errors.New("remote error: tls: protocol version not supported")), fresh, "tls",
			[]string{"protocol version"}},
		"401": {
			&wire.Refused{Status: 401, Text: "not this node"}, fresh, "refused",
			[]string{"HTTP 401: not this node", "edgecore join"},
		},
		"401, expired": {&wire.Refused{Status: 401}, gone, "certificate_expired", []string{"2026-05-30"}},
		"full": {
			&wire.Refused{Status: 503, Text: "full"}, fresh, "busy", []string{"HTTP 503: full", "nodeLimit"},
		},
		"duplicate": {
			&wire.Refused{Status: 409, Text: "two devices"}, fresh, "duplicate", []string{"HTTP 409: two devices"},
		},
		"another server": {
			&wire.Refused{Status: 404}, fresh, "no_websocket", []string{"HTTP 404", "not cloudcore"},
		},
		"over QUIC": {&wire.Refused{Text: "no room"}, fresh, "refused", []string{"no room"}},
		"proxy": {&wire.ProxyError{Proxy: "p:3128", Err: errors.New("odd")}, fresh, "proxy",
			[]string{"p:3128", "odd", "HTTPS_PROXY"}},
		"proxy refuses": {
			&wire.ProxyError{Proxy: "p:3128", Err: &proxy.Refused{Proxy: "p:3128", Status: 403}}, fresh, "proxy",
			[]string{"the proxy p:3128 does not connect to cloud.example:10000 (HTTP 403 Forbidden)", "NO_PROXY"},
		},
		"proxy is not there": {
			&wire.ProxyError{Proxy: "p:3128", Err: dial(syscall.ECONNREFUSED)}, fresh, "connection_refused",
			[]string{"the proxy p:3128"},
		},
		"through a proxy 401": {&wire.ProxyError{Proxy: "p:3128", Err: &wire.Refused{Status: 401}}, fresh, "refused",
			[]string{"HTTP 401", "through the proxy p:3128"}},
		"unknown": {errors.New("odd"), fresh, "other", []string{"cloud.example:10000", "odd"}},
	} {
		target := target{protocol: "websocket", server: "cloud.example:10000", handshake: 30 * time.Second}
		got := explain(target, c.own, files{ca: "/etc/ca.crt"}, now, c.err)
		if got.kind != c.kind || got.expired != (c.kind == "certificate_expired") || !errors.Is(got, c.err) {
			t.Errorf("%s: kind %q, want %q", name, got.kind, c.kind)
		}
		for _, part := range c.has {
			if !strings.Contains(got.text, part) {
				t.Errorf("%s: text %q, want %q in it", name, got.text, part)
			}
		}
	}
}
