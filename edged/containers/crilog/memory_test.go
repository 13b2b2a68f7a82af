package crilog

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzPrint: whatever a container wrote into its log, and whatever was made of it, printing it takes a bounded amount
// of memory: not more for a longer log, but for the lines that are held.
func FuzzPrint(f *testing.F) {
	const head = "2026-01-01T00:00:00.5Z stdout "
	f.Add(head+"F text\n", "", uint32(0), int64(-1), false)
	f.Add(head+"F ", "x", uint32(8<<20), int64(-1), true)
	f.Add(head+"P ", "x", uint32(8<<20), int64(10), false)
	f.Add("", "x", uint32(8<<20), int64(1), false)
	f.Add("", "\n", uint32(8<<20), int64(1<<40), false)
	f.Add("", head+"P x\n", uint32(100_000), int64(10), true)
	f.Add("", "\x00", uint32(8<<20), int64(1000), false)
	dir := filepath.Join(f.TempDir(), "c")
	if err := os.Mkdir(dir, 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, head, part string, times uint32, tail int64, timestamps bool) {
		times = min(times, uint32((8<<20)/max(len(part), 1)))
		text := head + strings.Repeat(part, int(times))
		if err := os.WriteFile(filepath.Join(dir, "0.log"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		// A line of maxLine is held in a buffer that doubles. Of each line its time is parsed from a string, and
		// written again.
		lines := 1 + strings.Count(text, "\n")
		limit := membound.Base + 8*maxLine + uint64(lines)*256
		var printed int64
		membound.Check(t, limit, func() {
			n := &counting{}
			_ = Print(t.Context(), dir, n, n, Options{Tail: tail, Timestamps: timestamps})
			printed = n.n
		})
		if most := int64(len(text) + 64*lines + 64*(len(text)/maxLine+1)); printed > most {
			t.Errorf("printed %d bytes of a log of %d, want at most %d", printed, len(text), most)
		}
	})
}

// counting counts what is written.
type counting struct{ n int64 }

func (c *counting) Write(p []byte) (int, error) {
	n, err := io.Discard.Write(p)
	c.n += int64(n)
	return n, err
}
