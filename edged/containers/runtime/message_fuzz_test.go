package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzTerminationMessage: whatever a container leaves as its message, or in its log, the end of it is read in a bounded
// amount of memory.
func FuzzTerminationMessage(f *testing.F) {
	f.Add("done", uint32(1))
	f.Add("x", uint32(8<<20))
	f.Add("\xff", uint32(8<<20))
	f.Add("\n", uint32(8<<20))
	f.Add("2026-01-01T00:00:00Z stderr F secret\n", uint32(100_000))
	f.Add("2026-01-01T00:00:00Z stderr P \n", uint32(100_000))
	f.Add(" stdout P \n", uint32(100_000))
	dir := filepath.Join(f.TempDir(), "ns_p_1", "c")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(dir, "0.log")
	f.Fuzz(func(t *testing.T, part string, times uint32) {
		text := strings.Repeat(part, int(min(times, uint32((8<<20)/max(len(part), 1)))))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var message, tail string
		membound.Check(t, membound.Base, func() { message, _ = readMessage(path) })
		// Of a log, 24 KiB are read at first, and 512 KiB at most.
		membound.Check(t, membound.Linear(700<<10, 2), func() { tail, _ = logTail(path) })
		if len(message) > maxMessage || len(tail) > maxMessageLog || !utf8.ValidString(message+tail) {
			t.Errorf("a message of %d bytes and a tail of %d, want valid text of at most %d and %d", len(message),
				len(tail),
				maxMessage, maxMessageLog)
		}
	})
}
