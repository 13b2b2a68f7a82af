package prober

import "testing"

func TestUserAgent(t *testing.T) {
	for version, want := range map[string]string{
		"v1.37.2": "kube-probe/1.37", "v1.37": "kube-probe/1.37", "v2": "kube-probe/2", "": "kube-probe/",
	} {
		if got := UserAgent(version); got != want {
			t.Errorf("UserAgent(%q) = %q, want %q", version, got, want)
		}
	}
}
