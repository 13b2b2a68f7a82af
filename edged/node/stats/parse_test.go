package stats

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestNumber(t *testing.T) {
	for text, want := range map[string]*uint64{
		"42\n": ptr.To[uint64](42), "max\n": ptr.To[uint64](math.MaxUint64), "": nil, "-1\n": nil, "4 2": nil, "x": nil,
	} {
		if diff := cmp.Diff(want, number(text)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestTable(t *testing.T) {
	got := table("MemTotal:        2033676 kB\nInactive(file):   1000 kB\nusage_usec 17\nodd\nempty:\nx " +
		"y\nHugePages_Total:       0\n")
	want := map[string]uint64{"MemTotal": 2033676, "Inactive(file)": 1000, "usage_usec": 17, "HugePages_Total": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPressure(t *testing.T) {
	got := pressure("some avg10=1.50 avg60=0.25 avg300=nan total=712345\nfull avg10=0.00 avg60=0.00 avg300=0.10 " +
		"total=494960\n")
	want := &statsapi.PSIStats{
		Some: statsapi.PSIData{Avg10: 1.5, Avg60: .25, Total: 712345000},
		Full: statsapi.PSIData{Avg300: .1, Total: 494960000},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := pressure(""); got != nil {
		t.Errorf("of nothing: %+v, want nil", got)
	}
}

func TestProcFiles(t *testing.T) {
	stat := "cpu  100 10 50 9000 70 5 3 1000 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\ncpu1 1 2 3 4 5 6 7 8 9 0\nbtime " +
		"1700000000\n"
	if got := cpuTime(stat); got == nil || *got != 168*10_000_000 {
		t.Errorf("CPU time %v; want 168 hundredths of a second: what was idle, waited or stolen does not count", got)
	}
	if got := processors(stat); got != 2 {
		t.Errorf("%d CPUs, want 2", got)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"} {
		if got := cpuTime(bad); got != nil {
			t.Errorf("%q: %d, want nil", bad, *got)
		}
	}
	if got := tasks("0.27 0.57 0.84 1/135 14664\n"); got == nil || *got != 135 {
		t.Errorf("tasks: %v, want 135", got)
	}
	if got := tasks("0.27 0.57"); got != nil {
		t.Errorf("tasks of half a line: %v, want nil", *got)
	}
}

const netDev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1000       2    0    0    0     0          0         0     1000       2    0    0    0     0       0          0
  eth0: 11         12   13   14    0     0          0         0       21      22   23   24    0     0       0          0
wlan0:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
 short: 1 2
`

func TestLinks(t *testing.T) {
	want := []link{
		{
			name:      "eth0",
			rxBytes:   11,
			rxPackets: 12,
			rxErrors:  13,
			rxDrop:    14,
			txBytes:   21,
			txPackets: 22,
			txErrors:  23,
			txDrop:    24,
		},
		{
			name:      "wlan0",
			rxBytes:   1,
			rxPackets: 2,
			rxErrors:  3,
			rxDrop:    4,
			txBytes:   9,
			txPackets: 10,
			txErrors:  11,
			txDrop:    12,
		},
	}
	if diff := cmp.Diff(want, links(netDev), cmp.AllowUnexported(link{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	route := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" +
		"wlan0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
	if got := defaultLink(route); got != "wlan0" {
		t.Errorf("default route by %q, want \"wlan0\"", got)
	}
	if got := defaultLink(""); got != "" {
		t.Errorf("default route of nothing by %q, want \"\"", got)
	}
}

func TestBlockIO(t *testing.T) {
	for text, want := range map[string][]blocks{
		"8:0 rbytes=10 wbytes=20 rios=3 wios=4 dbytes=0 dios=0\n259:0 rbytes=1 wbytes=2 rios=0 wios=0\n": {
			{"8:0", 10, 20}, {"259:0", 1, 2},
		},
		"8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\nTotal 30\n": {
			{"8:0", 10, 20},
		},
		"Total 0\n": nil,
	} {
		if got := blockIO(text, "rbytes", "wbytes"); !slices.Equal(got, want) {
			t.Errorf("blockIO(%q) = %v, want %v", text, got, want)
		}
	}
	if got, want := blockIO("8:0 rbytes=10 wbytes=20 rios=3 wios=4\n", "rios", "wios"),
		(blocks{"8:0", 3, 4}); len(got) != 1 || got[0] != want {
		t.Errorf("operations = %v, want %v", got, want)
	}
	var many strings.Builder
	for i := range 2 * maxDevices {
		fmt.Fprintf(&many, "8:%d rbytes=1\n", i)
	}
	if got := len(blockIO(many.String(), "rbytes", "wbytes")); got != maxDevices {
		t.Errorf("devices = %d, want %d", got, maxDevices)
	}
}

func TestDevices(t *testing.T) {
	got := devices("major minor  #blocks  name\n\n   8        0   10485760 sda\n 259        1   1048576 nvme0n1p1\n")
	if want := map[string]string{"8:0": "/dev/sda", "259:1": "/dev/nvme0n1p1"}; !maps.Equal(got, want) {
		t.Errorf("devices = %v, want %v", got, want)
	}
}

// Files of the kernel are whatever a container, a kernel or a runtime makes of them; what comes of them has to be JSON.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		netDev, "some avg10=NaN avg60=Inf avg300=1e999 total=18446744073709551615\n",
		"8:0 Read 10\n", "max\n", "cpu 1 2 3 4 5 6 7 8\n", "1 2 3 1/2 4", "MemTotal: 1 kB\n",
		strings.Repeat("a 1\n", 16<<10), strings.Repeat("a ", 32<<10), strings.Repeat("8:0 Read 1\n", 5_000),
		strings.Repeat("some ", 10_000), strings.Repeat("a: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n", 2_000),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// A line of 4 bytes becomes an entry of a map or of a list that doubles, and a word of 2 a string of 16.
		limit := membound.Linear(len(text), 128)
		membound.Check(t, limit, func() { number(text) })
		membound.Check(t, limit, func() { table(text) })
		membound.Check(t, limit, func() { cpuTime(text) })
		membound.Check(t, limit, func() { tasks(text) })
		membound.Check(t, limit, func() { links(text) })
		membound.Check(t, limit, func() { defaultLink(text) })
		membound.Check(t, limit, func() { blockIO(text, "rbytes", "wbytes") })
		membound.Check(t, limit, func() { devices(text) })
		membound.Check(t, limit, func() { pressure(text) })
		if _, err := json.Marshal(pressure(text)); err != nil {
			t.Error(err)
		}
	})
}
