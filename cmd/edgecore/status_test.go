package main

import (
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/edged/server"
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
