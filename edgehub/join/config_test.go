package join

import (
	"strings"
	"testing"
)

func TestParseServer(t *testing.T) {
	for text, want := range map[string][2]string{
		"192.0.2.1:10000": {"192.0.2.1", "10000"}, "192.0.2.1": {"192.0.2.1", "10000"},
		"cloud.example:30000": {"cloud.example", "30000"},
		"[2001:db8::1]:10000": {"2001:db8::1", "10000"}, "[2001:db8::1]": {"2001:db8::1", "10000"},
		"cloud": {"cloud", "10000"},
	} {
		if host, port, err := ParseServer(text); err != nil || host != want[0] || port != want[1] {
			t.Errorf("ParseServer(%q) = %q, %q, %v; want %q, %q", text, host, port, err, want[0], want[1])
		}
	}
	for _, text := range []string{"", ":10000", "a:b", "a:0", "a:70000", "https://a:1", "a:1/x", "2001:db8::1", "a b:1",
		"u@h:1", "a:"} {
		if _, _, err := ParseServer(text); err == nil || !strings.Contains(err.Error(), "want HOST:PORT") {
			t.Errorf("ParseServer(%q) = %v, want an error with %q", text, err, "want HOST:PORT")
		}
	}
}
