package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/tunnel"
)

// TestHeadOfRequests: clients that the cluster knows may send a long command in the URL, others may not.
func TestHeadOfRequests(t *testing.T) {
	address := listening(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, len(r.URL.Query().Get("command")))
	}))
	for _, c := range []struct {
		known bool
		size  int
		code  int
	}{
		{false, 10_000, 200}, {false, 40_000, 431}, {true, 40_000, 200}, {true, 1_000_000, 200}, {true, 2_000_000, 431},
	} {
		config := &tls.Config{InsecureSkipVerify: true}
		if c.known {
			config.Certificates = []tls.Certificate{certificate()}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		resp, err := client.Get("https://" + address + "/exec?command=" + strings.Repeat("a", c.size))
		if err != nil {
			if c.code == 200 {
				t.Errorf("known %v, %d bytes: %v, want 200", c.known, c.size, err)
			}
			continue // the server closed the connection while the rest was sent
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || c.code == 200 && string(body) != fmt.Sprint(c.size) {
			t.Errorf("known %v, %d bytes: %s %q, %v; want %d", c.known, c.size, resp.Status, body, err, c.code)
		}
	}
}

// TestSecuredInTheProcess: what tunnels carry is served without a port, over TLS and with the guard, and a connection
// can be half closed.
func TestSecuredInTheProcess(t *testing.T) {
	for _, may := range []string{"all", "nothing"} {
		l := NewLocal()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- securedBy(t, secure(&guardian{may: may}, true)).ServeLocal(ctx, l) }()
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) },
		}}
		resp, err := client.Get("https://node/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want := map[string]int{"all": 200, "nothing": 403}[may]; resp.StatusCode != want {
			t.Errorf("a client who may %s: %s, want %d", may, resp.Status, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ServeLocal = %v, want no error when ctx ends", err)
		}
		if _, err := l.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Dial after the end = %v, want %v", err, net.ErrClosed)
		}
	}

	near, far, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	defer far.Close()
	if err := tunnel.CloseWrite(near); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other end reads %v, want EOF", err)
	}
	if _, err := far.Write([]byte("x")); err != nil {
		t.Errorf("the other end writes: %v, want no error", err)
	}
}
