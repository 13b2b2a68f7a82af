package footprint

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const smaps = `00400000-01c5e000 r-xp 00000000 fe:00 272 /opt/edge core
Size:              24952 kB
Rss:               13020 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01c5e000-01c60000 r-xp 0185e000 fe:00 272 /opt/edge core
Anonymous:             4 kB
01c60000-02c5e000 r--p 01860000 fe:00 272 /opt/edge core
Anonymous:             0 kB
02c5e000-02d00000 rw-p 0285e000 fe:00 272 /opt/edge core
Anonymous:             0 kB
7f0000000000-7f0000001000 r-xp 00000000 fe:00 300 /lib/other
Anonymous:             0 kB
7f0000001000-7f0000002000 r--p 00000000 00:00 0
Anonymous:             0 kB
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
`

// TestUnchanged: only what the program's file can give back is unmapped: neither data, nor code that was changed, nor
// other files.
func TestUnchanged(t *testing.T) {
	got, err := unchanged(strings.NewReader(smaps), "/opt/edge core")
	if want := []area{{0x400000, 0x1c5e000}, {0x1c60000, 0x2c5e000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("unchanged = %x, %v; want %x", got, err, want)
	}
	if _, err := unchanged(strings.NewReader("zz-1 r-xp 0 fe:00 1 /a\n"), "/a"); err == nil {
		t.Error("unchanged of an address that is no number: no error")
	}
}

// TestUnmapFile: pages of the file are resident no more, and the program goes on.
func TestUnmapFile(t *testing.T) {
	before := resident(t)
	if err := unmapFile(); err != nil {
		t.Fatal(err)
	}
	if after := resident(t); after > before*3/4 {
		t.Errorf("%d KB of files are resident, before %d; want a quarter less", after, before)
	}
}

// resident is how much of files is resident, in KB.
func resident(t *testing.T) (kb int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}
