package metamanager

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
)

// TestEndOfAPodOnFullDisk: on a full disk the last status and the end of a pod that is being deleted are stored and
// sent, so that it goes, and the statuses of others wait.
func TestEndOfAPodOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	open := func() *store.Store {
		s, _, err := store.Open(t.Context(), filepath.Join(dir, "edgecore.db"), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	ending := strings.Replace(object("a", "ends", "u1", "1"), `"uid"`,
		`"deletionTimestamp":"2026-01-01T00:00:00Z","uid"`, 1)
	for key, value := range map[string]string{"a/pod/ends": ending, "a/pod/runs": object("a", "runs", "u2", "1")} {
		if err := s.Apply(t.Context(), store.Upsert(store.Meta{Key: key, Type: "pod", Value: []byte(value)})); err !=
			nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil { // its log needs room again
		t.Fatal(err)
	}
	s = open()
	defer s.Close()
	f, err := os.Create(filepath.Join(dir, "stuffing"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, chunk := range []int{64 << 10, 4 << 10, 1} {
		for err = nil; err == nil; _, err = f.Write(make([]byte, chunk)) {
		}
	}
	m := New(dropping{}, s, Options{})
	do := func(operation, res, content string) error {
		_, err := m.executeOnce(t.Context(), model.New(model.ModuleEdged, model.GroupMeta, operation, res,
			[]byte(content)))
		return err
	}
	if err := do("patch", "a/podpatch/runs", quote(t, patch("u2", "Running"))); !errors.Is(err, store.ErrFull) {
		t.Errorf("status of a pod that runs: %v, want ErrFull", err)
	}
	if err := do("patch", "a/podpatch/ends", quote(t, patch("u1", "Failed"))); err != nil {
		t.Errorf("last status of a pod that is being deleted: %v, want nil", err)
	}
	if err := do("delete", "a/pod/ends", end("u1")); err != nil {
		t.Errorf("end of a pod: %v, want nil", err)
	}
	reports, err := s.OutboxKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, r := range reports {
		keys = append(keys, r.Key)
	}
	if diff := cmp.Diff([]string{"patch:u1 a/podpatch/ends", "delete:u1 a/pod/ends"}, keys); diff != "" {
		t.Errorf("outbox (-want +got):\n%s", diff)
	}
}
