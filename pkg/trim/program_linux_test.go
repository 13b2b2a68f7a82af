package trim

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestUnmappable: only what the kernel can read again from the program's file is unmapped.
func TestUnmappable(t *testing.T) {
	fields := func(anonymous, swap int) string {
		return fmt.Sprintf("Size: 12 kB\nRss: 12 kB\nAnonymous:  %d kB\nSwap:  %d kB\nSwapPss: 0 kB\nVmFlags: rd mr\n",
			anonymous, swap)
	}
	text := "00400000-01326000 r-xp 00001000 fe:00 12   /usr/bin/edge core\n" + fields(0, 0) +
		"01326000-02280000 r--p 00f26000 fe:00 12   /usr/bin/edge core\n" + fields(0, 0) +
		"02280000-0228a000 r--p 01e80000 fe:00 12   /usr/bin/edge core\n" + fields(4, 0) + // the loader wrote to it
		"0228a000-0228b000 r--p 01e8a000 fe:00 12   /usr/bin/edge core\n" + fields(0, 4) +
		"0228b000-0231b000 rw-p 01e8b000 fe:00 12   /usr/bin/edge core\n" + fields(0, 0) +
		"2300c000-23130000 rw-p 00000000 00:00 0    [heap]\n" + fields(0, 0) +
		"7fe19ce79000-7fe19ce9f000 r--p 00000000 fe:00 9   /usr/lib/libc.so.6\n" + fields(0, 0) +
		"7fe19d095000-7fe19d096000 r--p 00000000 00:00 0 \n" + fields(0, 0)
	got, err := unmappable(bufio.NewScanner(strings.NewReader(text)), "/usr/bin/edge core")
	want := []mapping{{0x400000, 0x1326000}, {0x1326000, 0x2280000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("unmappable = %x, %v; want %x", got, err, want)
	}
	for _, bad := range []string{"no range r-xp 0 0 0 x\n", "1-z r-xp 00000000 fe:00 12 /x\n", "1-2 r-xp\n"} {
		if got, err := unmappable(bufio.NewScanner(strings.NewReader(bad)), "/x"); err == nil {
			t.Errorf("unmappable of %q = %v, want an error", bad, got)
		}
	}
}

// TestUnmapProgram: less of the program's file is mapped than before, and the program runs on.
func TestUnmapProgram(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	before, err := mappedFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after, err := mappedFiles(); err != nil || after+500<<10 > before {
		t.Errorf("%d bytes of files are mapped, and %d before: %v; want 500 KiB less at least", after, before, err)
	}
	again, err := os.ReadFile("/proc/self/exe")
	if err != nil || !slices.Equal(program, again) {
		t.Errorf("the program's file has changed: %v", err)
	}
}
