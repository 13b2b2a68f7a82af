package main

import (
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/edged/serve/server"
)

func TestLinkText(t *testing.T) {
	now := time.Unix(100000, 0)
	for want, l := range map[string]*server.Link{
		"none; `edgecore join` joins one": nil,
		"not connected yet":               {},
		"connected for 2m, to 192.0.2.1:10000 by quic": {
			Connected: true,
			Since:     now.Add(-2 * time.Minute),
			Protocol:  "quic",
			Server:    "192.0.2.1:10000",
			Reason:    "old",
		},
		"not connected for 3d: the name cloud.example is unknown": {Since: now.Add(-72 * time.Hour), Server: "x",
			Reason: "the name cloud.example is unknown"},
	} {
		if got := linkText(l, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAllIsWell: status says so only if the node has the link that it should have.
func TestAllIsWell(t *testing.T) {
	for name, c := range map[string]struct {
		link *server.Link
		well bool
	}{
		"no cloud":      {nil, true},
		"connected":     {&server.Link{Connected: true}, true},
		"not connected": {&server.Link{Reason: "the proxy refuses"}, false},
	} {
		var out strings.Builder
		if err := printStatus(&out, &server.Info{Link: c.link}, nil, time.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.Contains(out.String(), "All is well."); got != c.well {
			t.Errorf("%s: all is well: %v, want %v in\n%s", name, got, c.well, out.String())
		}
	}
}
