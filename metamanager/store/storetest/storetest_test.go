package storetest

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// calls makes each call once, and returns their errors.
func calls(t *testing.T, s Interface) (reads []error, write error) {
	t.Helper()
	_, err1 := s.Get(t.Context(), "a/pod/x")
	_, err2 := s.List(t.Context(), "pod")
	err3 := s.Each(t.Context(), "pod", func(store.Meta) error { return nil })
	_, err4 := s.Outbox(t.Context())
	_, err5 := s.AgentValue(t.Context(), "k")
	return []error{err1, err2, err3, err4, err5}, s.Apply(t.Context(), store.AgentSet("k", "v"))
}

func TestStoresThatFail(t *testing.T) {
	real, _, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "edgecore.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	flaky := &Flaky{Store: real}
	defer flaky.Close()
	if err := flaky.Apply(t.Context(), store.Upsert(store.Meta{Key: "a/pod/x", Type: "pod"}),
		store.AgentSet("k", "v")); err != nil {
		t.Fatal(err)
	}
	read, write := errors.New("read"), errors.New("write")
	for name, c := range map[string]struct {
		s           Interface
		setUp       func()
		read, write error
	}{
		"all fail":    {ErrStore{read}, func() {}, read, read},
		"reads fail":  {flaky, func() { flaky.Fail(read, nil) }, read, nil},
		"writes fail": {flaky, func() { flaky.Fail(nil, write) }, nil, write},
		"none fails":  {flaky, func() { flaky.Fail(nil, nil) }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.setUp()
			reads, w := calls(t, c.s)
			for i, err := range reads {
				if !errors.Is(err, c.read) {
					t.Errorf("read %d: %v, want %v", i, err, c.read)
				}
			}
			if !errors.Is(w, c.write) {
				t.Errorf("write: %v, want %v", w, c.write)
			}
		})
	}
}
