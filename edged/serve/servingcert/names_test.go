package servingcert

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
)

// TestClusterNames: the cluster is asked for what the node's own Node object says, which does not have the host's name.
func TestClusterNames(t *testing.T) {
	api := newCluster(t)
	c := New(Options{Dir: t.TempDir(), Node: "n1", IPs: func() []string { return []string{"192.0.2.7"} }, Cluster: api})
	if _, err := c.step(t.Context()); err == nil {
		t.Fatal("step = nil, want that the request waits for its approval")
	}
	if len(api.requests) != 1 {
		t.Fatalf("%d requests, want 1", len(api.requests))
	}
	for name, csr := range api.requests {
		block, _ := pem.Decode(csr.Spec.Request)
		if block == nil {
			t.Fatalf("request %s is %q, want PEM", name, csr.Spec.Request)
		}
		x, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x.DNSNames, []string{"n1"}) || len(x.IPAddresses) != 1 {
			t.Errorf("request for %v and %v, want n1 and one address", x.DNSNames, x.IPAddresses)
		}
	}
}
