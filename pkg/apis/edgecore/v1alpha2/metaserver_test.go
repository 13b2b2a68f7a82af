package v1alpha2

import (
	"fmt"
	"testing"
)

// TestAddressesOfTheMetaServer: pods get addresses that they can reach, at most one of each family.
func TestAddressesOfTheMetaServer(t *testing.T) {
	for text, want := range map[string]int{
		"169.254.30.10:10550":                   1,
		"169.254.30.10:10550,[fdec:30::10]:443": 2,
		"[fdec::1]:1, 10.0.0.1:2":               2,
		"":                                      0,
		"169.254.30.10":                         0,
		"169.254.30.10:0":                       0,
		"localhost:10550":                       0,
		"127.0.0.1:10550":                       0,
		"0.0.0.0:10550":                         0,
		"[fe80::1]:10550":                       0,
		"[fe80::1%eth0]:10550":                  0,
		"[::ffff:10.0.0.1]:10550":               0,
		"10.0.0.1:1,10.0.0.2:1":                 0,
		"10.0.0.1:1,[fd00::1]:1,10.0.0.2:1":     0,
	} {
		got, err := (&MetaServer{DummyServer: text}).PodAddresses()
		if len(got) != want || (err == nil) != (want > 0) {
			t.Errorf("dummyServer %q: %v, %v; want %d addresses", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"127.0.0.1:10550": "127.0.0.1:10550", "[::1]:1": "[::1]:1", "a:1": ""} {
		got, err := (&MetaServer{Server: text}).ServerAddress()
		if err == nil && fmt.Sprint(got) != want || err != nil && want != "" {
			t.Errorf("server %q: %v, %v; want %q", text, got, err, want)
		}
	}
}
