package cloudconfig

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
)

func TestCertificateOptions(t *testing.T) {
	hub := &v1alpha1.CloudHub{
		AdvertiseAddress: []string{"192.0.2.1", "2001:db8::1"}, DNSNames: []string{"", "cloud.example.com"},
		TLSCAFile: "/ca", TLSCAKeyFile: "/cakey", TLSCertFile: "/cert", TLSPrivateKeyFile: "/key",
		EdgeCertSigningDuration: 2, TokenRefreshDuration: 3,
	}
	want := certificates.Options{
		CAFile: "/ca", CAKeyFile: "/cakey", CertFile: "/cert", KeyFile: "/key",
		Addresses: []string{"192.0.2.1", "2001:db8::1", "cloud.example.com"}, ProtectTaken: true,
		NodeLifetime: 48 * time.Hour, TokenRefresh: 3 * time.Hour,
	}
	if diff := cmp.Diff(want, CertificateOptions(hub)); diff != "" {
		t.Errorf("certificate options mismatch (-want +got):\n%s", diff)
	}
}

// TestSeconds: the durations of the configuration are in seconds.
func TestSeconds(t *testing.T) {
	o := HubOptions(&v1alpha1.CloudHub{KeepaliveInterval: 30, WriteTimeout: 7, NodeLimit: 17})
	if o.KeepaliveInterval != 30*time.Second || o.WriteTimeout != 7*time.Second || o.NodeLimit != 17 {
		t.Errorf("HubOptions = %+v, want 30s, 7s and 17 nodes", o)
	}
	if got := GuardOptions(&v1alpha1.CloudHub{LookupsPerSource: 5}).LookupsPerSource; got != 5 {
		t.Errorf("lookups per source = %d, want 5", got)
	}
}
