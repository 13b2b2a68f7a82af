package logdedup

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
)

// at is a writer with a clock of the test's.
func at() (w *Writer, out *bytes.Buffer, clock *time.Time) {
	out, clock = &bytes.Buffer{}, new(time.Time)
	*clock = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w = New(out)
	w.now = func() time.Time { return *clock }
	return w, out, clock
}

func record(place, output string) []byte {
	return []byte(fmt.Sprintf("I0102 03:04:05.%06d    1234 %s] %s\n", time.Now().Nanosecond()/1000, place, output))
}

// said are the lines that passed, without their heads.
func output(out *bytes.Buffer) []string {
	var lines []string
	for line := range strings.Lines(out.String()) {
		_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "] ")
		lines = append(lines, text)
	}
	return lines
}

// TestRepeats: what is said over and over passes five times, and then once a minute.
func TestRepeats(t *testing.T) {
	w, out, clock := at()
	for range 600 { // ten minutes
		if n, err := w.Write(record("a.go:1", `"Disk is full"`)); err != nil || n == 0 {
			t.Fatalf("Write: %d, %v; want the line to be taken", n, err)
		}
		*clock = clock.Add(time.Second)
	}
	lines := output(out)
	if len(lines) < 5+9 || len(lines) > 5+10 || lines[4] != `"Disk is full"` ||
		lines[5] != `"Disk is full" leftOut=55` {
		t.Errorf("%d lines %q, want 14 or 15 with 55 left out at the sixth", len(lines), lines)
	}
	// After a pause it is news again.
	out.Reset()
	*clock = clock.Add(time.Hour)
	if _, err := w.Write(record("a.go:1", `"Disk is full"`)); err != nil {
		t.Fatal(err)
	}
	if lines := output(out); len(lines) != 1 {
		t.Errorf("lines after a pause = %q, want one", lines)
	}
}

// TestLoop: a place whose lines differ each time is bounded, too, and others are not held up by it.
func TestLoop(t *testing.T) {
	w, out, clock := at()
	for i := range 20_000 { // 100 s
		if _, err := w.Write(record("a.go:1", fmt.Sprintf(`"Try" n=%d`, i))); err != nil {
			t.Fatal(err)
		}
		*clock = clock.Add(5 * time.Millisecond)
	}
	if lines := output(out); len(lines) < siteBurst || len(lines) > siteBurst+110 {
		t.Errorf("%d lines passed, want %d to %d", len(lines), siteBurst, siteBurst+110)
	}
	if n := w.seen.Len(); n > kept {
		t.Errorf("%d seen, want at most %d", n, kept)
	}
	out.Reset()
	if _, err := w.Write(record("b.go:1", `"Other"`)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`"Other"`}, output(out)); diff != "" {
		t.Errorf("lines mismatch (-want +got):\n%s", diff)
	}
}

// TestPasses: what is not a line of klog, or is the last that a process says, is left as it is.
func TestPasses(t *testing.T) {
	for _, text := range []string{"", "panic: x\n", "goroutine 1 [running]:\n", "F0102 03:04:05.000000 1 a.go:1] end\n",
		"I] no head\n", "] \n"} {
		w, out, _ := at()
		for range 20 {
			if n, err := w.Write([]byte(text)); err != nil || n != len(text) {
				t.Fatalf("Write: %d, %v; want %d", n, err, len(text))
			}
		}
		if out.String() != strings.Repeat(text, 20) {
			t.Errorf("%q: wrote %q, want it 20 times", text, out.String())
		}
	}
}

func FuzzWrite(f *testing.F) {
	f.Add([]byte("I0102 03:04:05.000000 1 a.go:1] end\n"))
	f.Add([]byte("E] \n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, out, _ := at()
		before := bytes.Clone(text)
		if n, err := w.Write(text); err != nil || n != len(text) || !bytes.Equal(out.Bytes(), before) ||
			!bytes.Equal(text, before) {
			t.Errorf("Write(%q) = %d, %v, wrote %q, text now %q; want the text as it is", before, n, err, out.Bytes(),
				text)
		}
	})
}

// TestInstall: klog itself, in a process of its own.
func TestInstall(t *testing.T) {
	if os.Getenv("QUIETLOG_CHILD") != "" {
		if err := Install(os.Stderr); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			klog.ErrorS(nil, "The same")
		}
		klog.InfoS("Another")
		klog.Flush()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestInstall$")
	cmd.Env = append(os.Environ(), "QUIETLOG_CHILD=1")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("child: %v, want no error\n%s", err, errOut.String())
	}
	if same, other := strings.Count(errOut.String(), `"The same"`),
		strings.Count(errOut.String(), `"Another"`); same != sameBurst || other != 1 {
		t.Errorf("%d and %d lines, want %d and 1:\n%s", same, other, sameBurst, errOut.String())
	}
}
