// Package filewatchtest makes watchers of folders for tests.
package filewatchtest

import (
	"testing"

	"github.com/edgecore-io/edgecore/pkg/filewatch"
)

// New returns a watcher that is closed when the test ends.
func New(t testing.TB) *filewatch.Watcher {
	w := filewatch.New(filewatch.Options{})
	t.Cleanup(w.Close)
	return w
}
