package crilog

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/edged/logdir"
)

// rotatedForm is what a log's name gets when it is rotated, as the kubelet and this agent do it.
const rotatedForm = "20060102-150405"

// rotated opens the part of an open log that was rotated away last, so that a log is not empty just because it was. It
// is nil when there is none, or none that can be read as it is: those before it are compressed.
func rotated(root *os.Root, name string, current *os.File, since time.Time) *os.File {
	entries, err := logdir.ReadDir(root)
	if err != nil {
		return nil // the log that is open is there to be read
	}
	have, err := current.Stat()
	if err != nil {
		return nil
	}
	for _, e := range slices.Backward(entries) { // in the order of their names, and so of their times
		stamp, ok := strings.CutPrefix(e.Name(), name+".")
		if _, err := time.Parse(rotatedForm, stamp); !ok || err != nil {
			continue
		}
		f, err := logdir.OpenFile(root, e.Name())
		if err != nil {
			return nil // it was just compressed, or is not a log
		}
		st, err := f.Stat()
		if err == nil && !os.SameFile(st, have) && !st.ModTime().Before(since) {
			return f
		}
		f.Close()
		if err != nil || st.ModTime().Before(since) {
			return nil
		}
	}
	return nil
}
