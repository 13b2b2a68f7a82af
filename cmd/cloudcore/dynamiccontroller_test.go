package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/cloud/edgeports"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestDynamicController: with modules.dynamicController, a node reaches kube-apiserver through cloudcore with the
// credentials of its clients; without it, it is offered nothing.
func TestDynamicController(t *testing.T) {
	for name, enable := range map[string]bool{"enabled": true, "default": false} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			apiserver := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.Header.Get("Authorization")+" at "+r.URL.Path)
			}))
			defer apiserver.Close()
			cfg := localConfig(t)
			if enable {
				cfg.Modules.DynamicController.Enable = true
			}
			api := fakeAPI()
			api.Anonymous = &rest.Config{
				Host: apiserver.URL,
				TLSClientConfig: rest.TLSClientConfig{
					CAData: certs.EncodeCertPEM(apiserver.Certificate().Raw),
				},
			}
			result := started(ctx, t, cfg, api)
			o := wire.DialOptions{
				URL:      "wss://" + edgeports.Address(&cfg.Modules.CloudHub.WebSocket) + "/p/edge1/events",
				TLS:      joined(t, "https://"+edgeports.Address(&cfg.Modules.CloudHub.HTTPS), api, "edge1"),
				Header:   http.Header{},
				Features: wire.Features{Inventory: true, API: true},
			}
			o.Header.Set(wire.HeaderNodeID, "edge1")
			o.Header.Set(wire.HeaderUse, wire.UseMessages)
			link, err := wire.DialWebSocket(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			defer link.Close(wire.CloseGoingAway, "")
			if got := link.Features().API; got != enable {
				t.Errorf("the feature api is agreed on: %v, want %v", got, enable)
			}
			conn, err := wire.DialAPI(ctx, o)
			if (err == nil) != enable {
				t.Fatalf("DialAPI = %v, want a connection: %v", err, enable)
			}
			if enable {
				opener, err := tunnel.NewAPIOpener(conn)
				if err != nil {
					t.Fatal(err)
				}
				defer opener.Close()
				askAPI(t, opener)
				_, text := get(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
					"http://"+cfg.CommonConfig.MonitorServer.BindAddress+"/metrics")
				const metric = "\ncloudcore_api_forwarded_total{code=\"200\"} 1\n"
				if !strings.Contains(string(text), metric) {
					t.Errorf("metrics without %q", metric)
				}
			}
			cancel()
			if err := wait.Receive(t, "the end of cloudcore", result); err != nil {
				t.Errorf("ended with %v, want no error", err)
			}
		})
	}
}

// askAPI sends a request over a stream, and checks the answer.
func askAPI(t *testing.T, opener *tunnel.APIOpener) {
	t.Helper()
	stream, err := opener.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kubernetes/api/v1/nodes", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer of-the-pod")
	if err := r.Write(stream); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(stream), r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if want := "Bearer of-the-pod at /api/v1/nodes"; err != nil || string(body) != want {
		t.Errorf("answer %d %q, %v; want %q", answer.StatusCode, body, err, want)
	}
}
