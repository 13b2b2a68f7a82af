package certs

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestHolder(t *testing.T) {
	at := func(bound bool, seconds int64) string {
		holder, err := NewHolder(bound, time.Unix(seconds, 0))
		if err != nil {
			t.Fatal(err)
		}
		return holder
	}
	general, later := at(false, 1_700_000_000), at(true, 1_700_000_001)
	for _, holder := range []string{general, later} {
		if got := HolderOf(&x509.Certificate{Subject: pkix.Name{SerialNumber: holder}}); got != holder {
			t.Errorf("HolderOf = %q, want %q", got, holder)
		}
		if faults := validation.IsValidLabelValue(holder); len(faults) > 0 {
			t.Errorf("%q as the value of a label: %v, want it valid", holder, faults)
		}
	}
	for _, text := range []string{
		"", "x", "b-1-", "b-99999999999999-0123456789abcdef", general + "\n", "b-1-0123456789ABCDEF",
	} {
		if got := HolderOf(&x509.Certificate{Subject: pkix.Name{SerialNumber: text}}); got != "" {
			t.Errorf("HolderOf of %q = %q, want none", text, got)
		}
	}
	for _, tc := range []struct {
		name, holder, other string
		want                bool
	}{
		{"later, for the node alone", later, general, true},
		{"later, for any node", at(false, 1_700_000_002), general, false},
		{"earlier", later, at(true, 1_700_000_002), false},
		{"at the same time", later, at(true, 1_700_000_001), false},
		{"a label that is not a holder", later, "x", true},
		{"none", "", general, false},
	} {
		if got := Supersedes(tc.holder, tc.other); got != tc.want {
			t.Errorf("%s: Supersedes(%q, %q) = %v, want %v", tc.name, tc.holder, tc.other, got, tc.want)
		}
	}
}
