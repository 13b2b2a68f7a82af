package edgehub

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
)

// TestNoticeCA: the cloud has another CA when no chain leads from its certificate directly to one that the node knows.
func TestNoticeCA(t *testing.T) {
	chain := func(n int) []*x509.Certificate { return make([]*x509.Certificate, n) }
	for _, tc := range []struct {
		name   string
		chains [][]*x509.Certificate
		want   bool
	}{
		{"of a known CA", [][]*x509.Certificate{chain(2)}, false},
		{"of a CA for which a known one vouches", [][]*x509.Certificate{chain(3)}, true},
		{"of either", [][]*x509.Certificate{chain(3), chain(2)}, false},
		{"not verified", nil, false},
	} {
		config, noticed := &tls.Config{}, false
		noticeCA(config, func() { noticed = true })
		if err := config.VerifyConnection(tls.ConnectionState{VerifiedChains: tc.chains}); err != nil ||
			noticed != tc.want {
			t.Errorf("%s: noticed %v, error %v; want %v, no error", tc.name, noticed, err, tc.want)
		}
	}
	config := &tls.Config{}
	if noticeCA(config, nil); config.VerifyConnection != nil {
		t.Error("VerifyConnection is set although nobody is to be told, want nil")
	}
}
