package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// TestLocal: requests in the process are served until ctx ends, and refused afterwards.
func TestLocal(t *testing.T) {
	l := NewLocal()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- ServeLocal(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "served ", r.URL.Path)
		}))
	}()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) },
	}}
	for range 2 {
		resp, err := client.Get("http://node/pods")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "served /pods" {
			t.Errorf("the answer is %q, %v; want served /pods", body, err)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("ServeLocal = %v, want no error when ctx ends", err)
	}
	if _, err := l.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Dial after the end = %v, want %v", err, net.ErrClosed)
	}
}
