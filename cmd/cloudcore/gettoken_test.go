package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

func getToken(t *testing.T, secrets certificates.Secrets, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	o := &getTokenOptions{
		globalOptions: &globalOptions{}, secrets: func(context.Context) (certificates.Secrets, error) {
			return secrets, nil
		},
	}
	cmd := o.command()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(append([]string{}, args...)) // never nil, for which cobra takes those of the test
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func TestGetToken(t *testing.T) {
	secrets := fake.NewClientset().CoreV1().Secrets(certificates.Namespace)
	if _, _, err := getToken(t, secrets); err == nil ||
		!strings.Contains(err.Error(), "cloudcore makes it when it starts") {
		t.Errorf("before the first start: %v, want it to say who makes the token", err)
	}
	started := time.Now()
	authority, err := certificates.New(t.Context(), secrets, certificates.Options{Addresses: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args  []string
		word  string
		bound bool
		lasts time.Duration
	}{
		"general":        {nil, "For any device, until ", false, 24 * time.Hour},
		"for a node":     {[]string{"--node", "edge1"}, "For node edge1 alone, until ", true, 24 * time.Hour},
		"for an hour":    {[]string{"--node", "edge1", "--ttl", "1h"}, "For node edge1 alone, until ", true, time.Hour},
		"general, short": {[]string{"--ttl", "10m"}, "For any device, until ", false, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			before := time.Now()
			out, errs, err := getToken(t, secrets, tc.args...)
			after := time.Now()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(out, "\n") != 1 || errs != "" {
				t.Errorf("stdout %q, stderr %q: want the token alone", out, errs)
			}
			token, err := certs.ParseToken(out)
			if err != nil {
				t.Fatal(err)
			}
			if about := aboutToken(token); !strings.HasPrefix(about, tc.word) ||
				!strings.Contains(about, "edgecore join") {
				t.Errorf("about it: %s, want %q and how to join", about, tc.word)
			}
			bound, err := authority.VerifyToken(token.Bearer, "edge1")
			if err != nil || bound != tc.bound || !token.SignedBy(authority.CA().Raw) {
				t.Errorf("bound %v, %v; want %v and signed by the CA", bound, err, tc.bound)
			}
			if tc.args == nil { // cloudcore made it
				before = started
			}
			earliest, latest := before.Add(tc.lasts-time.Second), after.Add(tc.lasts) // it names whole seconds
			if got := token.Claims.Expires; got.Before(earliest) || got.After(latest) {
				t.Errorf("expires at %v, want %v to %v", got, earliest, latest)
			}
		})
	}
	for want, args := range map[string][]string{
		"is not the name of a node": {"--node", "Edge_1"}, "--ttl -1s": {"--ttl", "-1s"},
		"at most": {"--ttl", "10000h"}, "unknown command": {"edge1"},
	} {
		if out, _, err := getToken(t, secrets, args...); err == nil || !strings.Contains(err.Error(), want) ||
			out != "" {
			t.Errorf("%v: printed %q, %v; want nothing and %q", args, out, err, want)
		}
	}
}
