package certificates

import (
	"strings"
	"testing"
	"time"
)

func TestTokenRequestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		request TokenRequest
		want    string
	}{
		"general":             {TokenRequest{}, ""},
		"for a node":          {TokenRequest{Node: "edge1.example", TTL: time.Hour, Replace: true}, ""},
		"as long as possible": {TokenRequest{TTL: maxTokenTTL}, ""},
		"no name of a node":   {TokenRequest{Node: "Edge_1"}, `--node "Edge_1" is not the name of a node`},
		"over already":        {TokenRequest{TTL: -1}, "--ttl -1ns: want more than 0s"},
		"too long":            {TokenRequest{TTL: maxTokenTTL + 1}, "2160h0m0s at most"},
		"replaces nothing":    {TokenRequest{Replace: true}, "--replace: which node?"},
	} {
		err := c.request.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Check = %v, want %q", name, err, c.want)
		}
	}
}

func TestTokenRequestIssue(t *testing.T) {
	secrets, clock := newFakeSecrets(), newClock()
	a := newTestAuthority(t, secrets, clock)
	general, err := ReadToken(t.Context(), secrets, clock.now())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		request TokenRequest
		bound   bool
		expires time.Time
		revoked bool
	}{
		{"general", TokenRequest{}, false, general.Claims.Expires, false},
		{"general, short", TokenRequest{TTL: 10 * time.Minute}, false, clock.now().Add(10 * time.Minute), false},
		{"for a node", TokenRequest{Node: "edge1"}, true, clock.now().Add(24 * time.Hour), false},
		{"for an hour", TokenRequest{Node: "edge1", TTL: time.Hour}, true, clock.now().Add(time.Hour), false},
		{"for another device", TokenRequest{Node: "edge1", Replace: true}, true, clock.now().Add(24 * time.Hour), true},
	} {
		token, err := c.request.Issue(t.Context(), secrets, clock.now())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		bound, err := a.VerifyToken(token.Bearer, "edge1")
		if err != nil || bound != c.bound {
			t.Errorf("%s: bound %v, %v; want %v", c.name, bound, err, c.bound)
		}
		if got, want := token.Claims.Expires.Unix(), c.expires.Unix(); got != want {
			t.Errorf("%s: expires at %d, want %d", c.name, got, want)
		}
		if revoked := !token.Claims.Since.IsZero(); revoked != c.revoked {
			t.Errorf("%s: certificates before %v are revoked, want some revoked: %v", c.name, token.Claims.Since,
				c.revoked)
		}
	}
	if _, err := (&TokenRequest{Node: "edge1"}).Issue(t.Context(), newFakeSecrets(), clock.now()); err == nil {
		t.Error("Issue before cloudcore's first start = nil, want an error")
	}
}
