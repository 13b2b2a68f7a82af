package subnet

import (
	"net/netip"
	"testing"
)

func TestPick(t *testing.T) {
	prefixes := func(texts ...string) []netip.Prefix {
		var all []netip.Prefix
		for _, s := range texts {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	const bridges, links = "10.64.0.0/10", "198.18.0.0/15"
	tests := []struct {
		name  string
		space string
		size  int
		taken []netip.Prefix
		seed  uint32
		want  string
	}{
		{"nothing taken", bridges, 24, nil, 0, "10.64.0.0/24"},
		{"seed decides where to begin", bridges, 24, nil, 257, "10.65.1.0/24"},
		{"seed wraps around", bridges, 24, nil, 64*256 + 3, "10.64.3.0/24"},
		{"a seed that is as large as can be", bridges, 24, prefixes("10.127.255.0/24"), 1<<32 - 1, "10.64.0.0/24"},
		{"same subnet taken", bridges, 24, prefixes("10.64.0.0/24"), 0, "10.64.1.0/24"},
		{"a wider one taken", bridges, 24, prefixes("10.64.0.0/16"), 0, "10.65.0.0/24"},
		{"a narrower one taken", bridges, 24, prefixes("10.64.0.128/25"), 0, "10.64.1.0/24"},
		{"others do not matter", bridges, 24, prefixes("192.168.0.0/16", "10.0.0.0/16"), 0, "10.64.0.0/24"},
		{"all taken", bridges, 24, prefixes("10.0.0.0/8"), 0, ""},
		{"a small network", links, 30, prefixes("198.18.0.0/30"), 0, "198.18.0.4/30"},
		{"a small network far on", links, 30, nil, 1 << 14, "198.19.0.0/30"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := pick(netip.MustParsePrefix(test.space), test.size, test.taken, test.seed)
			if test.want == "" {
				if err == nil {
					t.Errorf("pick() = %v, want an error", got)
				}
				return
			}
			if err != nil || got.String() != test.want {
				t.Errorf("pick() = %v, %v, want %s", got, err, test.want)
			}
		})
	}
}

func TestParseRoute(t *testing.T) {
	tests := []struct {
		line string
		want string
	}{
		{"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT", ""},
		{"eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0", "0.0.0.0/0"},
		{"eth0\t0000580A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0", "10.88.0.0/24"},
		{"*\t004DA8C0\t00000000\t0201\t0\t0\t0\t00FFFFFF\t0\t0\t0", "192.168.77.0/24"}, // an unreachable one
		{"short line", ""},
		{"eth0\tzz\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0", ""},
	}
	for _, test := range tests {
		got, ok := parseRoute(test.line)
		if ok != (test.want != "") || (ok && got.String() != test.want) {
			t.Errorf("parseRoute(%q) = %v, %v, want %q", test.line, got, ok, test.want)
		}
	}
}
