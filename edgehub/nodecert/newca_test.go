package nodecert_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
)

// TestNewCA: a device that only knows the previous CA gets a certificate of the new one, and trusts the new one alone
// from then on. When it is told of the new CA, it does so before the certificate is old.
func TestNewCA(t *testing.T) {
	clk := newClock()
	client := fake.NewClientset()
	secrets := client.CoreV1().Secrets(cloud.Namespace)
	c := serveCloud(t, clk, client)
	opts := c.options(t, c.token(t, ""))
	first := join(t, opts)
	if err := cloud.RotateCA(t.Context(), secrets, clk.now()); err != nil {
		t.Fatal(err)
	}
	after := serveCloud(t, clk, client)
	opts.Server = "https://" + after.address
	opts.Report = func(err error) { t.Errorf("reported %v, want no report", err) }
	ctx, cancel := context.WithCancel(t.Context())
	var k *nodecert.Keeper
	sleeps, renewals := 0, 0
	opts.Sleep = func(ctx context.Context, d time.Duration) error {
		if sleeps++; sleeps == 1 {
			if renewals != 0 {
				t.Error("renewed before it was told of another CA")
			}
			k.RenewSoon()
		}
		if d > time.Hour {
			t.Errorf("waits for %v, want an hour at most", d)
		}
		clk.add(d)
		if sleeps == 5 {
			k.RenewSoon() // nothing is to be had by it now
		}
		if sleeps == 20 {
			cancel()
		}
		return ctx.Err()
	}
	k = nodecert.New(opts)
	k.Rotate(ctx, func() { renewals++ })
	if renewals != 2 {
		t.Errorf("%d renewals, want one for the new CA and one that showed that there is no other", renewals)
	}
	id := load(t, opts.Files)
	if len(id.CAs) != 1 || !id.CAs[0].Equal(after.CA()) || id.CAs[0].Equal(first.CAs[0]) {
		t.Errorf("the device trusts %d CAs, the first %v; want the new one, %v", len(id.CAs), id.CAs[0].SerialNumber,
			after.CA().SerialNumber)
	}
	if err := id.Cert().CheckSignatureFrom(after.CA()); err != nil {
		t.Errorf("the certificate is not of the new CA: %v", err)
	}
	if err := after.Check("edge1", id.Cert()); err != nil {
		t.Error(err)
	}
}
