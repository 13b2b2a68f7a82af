package nodecert_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
)

// TestRevoked: a device whose node was revoked keeps its files and says what to do; a new token helps.
func TestRevoked(t *testing.T) {
	clk := newClock()
	client := fake.NewClientset()
	secrets := client.CoreV1().Secrets(cloud.Namespace)
	c := serveCloud(t, clk, client)
	opts := c.options(t, c.token(t, ""))
	first := join(t, opts)
	clk.add(300 * 24 * time.Hour)
	if _, err := cloud.Revoke(t.Context(), secrets, "edge1", clk.now()); err != nil {
		t.Fatal(err)
	}
	opts.Server = "https://" + serveCloud(t, clk, client).address // one that has read the revocation at its start
	var problem error
	opts.Report = func(err error) { problem = err }
	ctx, cancel := context.WithCancel(t.Context())
	opts.Sleep = func(context.Context, time.Duration) error { cancel(); return ctx.Err() }
	clk.add(40 * 24 * time.Hour)
	nodecert.New(opts).Rotate(ctx, func() { t.Errorf("renewed, want a report of %s", nodecert.Refused) })
	wantProblem(t, problem, nodecert.Refused, "node edge1 was revoked at 2027-09-17T12:00:00Z", "gettoken --node",
		"edgecore join", "no state is lost")
	if got := load(t, opts.Files).Cert(); !got.Equal(first.Cert()) {
		t.Errorf("certificate %v, want the first, %v", got.SerialNumber, first.Cert().SerialNumber)
	}

	token, err := cloud.NewNodeToken(t.Context(), secrets, "edge1", clk.now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodecert.New(opts).Join(t.Context(), token.String()); err != nil {
		t.Fatal(err)
	}
	if got := load(t, opts.Files).Cert(); got.NotBefore.Before(token.Claims.Since) {
		t.Errorf("the new certificate begins at %v, want not before %v", got.NotBefore, token.Claims.Since)
	}
	wantProblem(t, nodecert.New(opts).Join(t.Context(), c.token(t, "edge1")), nodecert.BadToken,
		"older than the last revocation")
}
