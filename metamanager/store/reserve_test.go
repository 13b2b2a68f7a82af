package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUrgentOnFullDisk: what is urgent is stored out of the reserve, up to a bound, which it gives back.
func TestUrgentOnFullDisk(t *testing.T) {
	dir := tmpfs(t, "8m")
	path := filepath.Join(dir, "edgecore.db")
	s := openTest(t, path)
	apply(t, s, Upsert(meta("a/pod/x", strings.Repeat("x", 4000))))
	if err := s.Close(); err != nil { // the log starts from nothing, and needs room
		t.Fatal(err)
	}
	s = openTest(t, path)
	stuffing := stuff(t, dir)
	if err := s.Apply(t.Context(), OutboxPut("delete a", []byte("end"))); !errors.Is(err, ErrFull) {
		t.Fatalf("Apply of what is not urgent = %v, want ErrFull", err)
	}
	put := func(i int) error {
		ops := Urgent(OutboxPut(fmt.Sprintf("delete p%d", i), []byte(strings.Repeat("e", 300))))
		return s.Apply(t.Context(), append(ops, Delete("nothing"))...)
	}
	stored := 0
	for ; put(stored) == nil; stored++ {
		if stored > 1000 {
			t.Fatal("urgent operations have no bound")
		}
	}
	if most := defaultReserve / 2 / urgentPage; stored < most/2 || stored > most {
		t.Errorf("%d urgent reports stored, want %d to %d", stored, most/2, most)
	}
	if err := put(stored); !errors.Is(err, ErrFull) {
		t.Errorf("Apply above the bound = %v, want ErrFull", err)
	}
	if err := put(0); err != nil {
		t.Errorf("Apply of what is stored already = %v, want nil", err)
	}
	if err := s.Apply(t.Context(), Urgent(Upsert(meta("a/pod/large", strings.Repeat("x", 100_000))))...); !errors.Is(
		err, ErrFull) {
		t.Errorf("Apply of something large = %v, want ErrFull", err)
	}
	if err := s.Apply(t.Context(), append(Urgent(OutboxPut("delete x", []byte("end"))),
		Upsert(meta("a/pod/small", "x")))...); !errors.Is(err, ErrFull) {
		t.Errorf("Apply with what is not urgent = %v, want ErrFull", err)
	}
	list, err := s.Outbox(t.Context())
	if err != nil || len(list) != stored {
		t.Fatalf("Outbox returned %d reports, %v; want %d", len(list), err, stored)
	}
	for _, r := range list[:10] {
		apply(t, s, OutboxAck(r.Key, r.Seq))
	}
	for i := range 10 {
		if err := put(stored + i); err != nil {
			t.Errorf("Apply after others have left = %v, want nil", err)
		}
	}
	if err := os.Remove(stuffing); err != nil {
		t.Fatal(err)
	}
	apply(t, s, OutboxPut("patch a", []byte("status")))
	for i := range 2 * stored {
		if err := put(2000 + i); err != nil {
			t.Fatalf("urgent report %d with room = %v, want nil", i, err)
		}
	}
}
