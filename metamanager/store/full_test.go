package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// tmpfs mounts a file system of a size, unmounted when the test ends.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func remount(t *testing.T, dir string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, data); err != nil {
		t.Fatal(err)
	}
}

// fillUp stores pods until there is no room, and returns how many were acknowledged.
func fillUp(t *testing.T, s *Store) int {
	t.Helper()
	for stored := range 5000 {
		err := s.Apply(t.Context(), Upsert(meta(fmt.Sprintf("a/pod/p%d", stored), strings.Repeat("x", 4000))))
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), fmt.Sprintf("a/pod/p%d", stored)) {
			t.Fatalf("after %d rows: %v, want ErrFull with the key", stored, err)
		}
		return stored
	}
	t.Fatal("5000 rows stored, want ErrFull before")
	return 0
}

// TestFullDisk: on a file system that is really full nothing that was acknowledged is lost, nothing else is
// stored, and work goes on by itself when there is room.
func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, "2m")
	path := filepath.Join(dir, "edgecore.db")
	s, _, err := Open(t.Context(), path, Options{Reserve: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stored := fillUp(t, s)
	list, err := s.List(t.Context(), "pod")
	if err != nil || len(list) != stored {
		t.Fatalf("%d rows, %v; want the %d that were acknowledged", len(list), err, stored)
	}
	remount(t, dir, 0, "size=16m")
	apply(t, s, Upsert(meta("a/pod/after", "1")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := openTest(t, path)
	if list, err := again.List(t.Context(), "pod"); err != nil || len(list) != stored+1 {
		t.Errorf("%d rows, %v; want %d", len(list), err, stored+1)
	}
}

// stuff fills a disk to its last byte.
func stuff(t *testing.T, dir string) (name string) {
	t.Helper()
	name = filepath.Join(dir, "stuffing")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, chunk := range []int{64 << 10, 4 << 10, 1} {
		for err = nil; err == nil; _, err = f.Write(make([]byte, chunk)) {
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("Write = %v, want %v", err, unix.ENOSPC)
		}
	}
	return name
}

// TestDeletesOnFullDisk: what takes away works out of the reserve, what adds does not get at it, and both do when
// there is room again.
func TestDeletesOnFullDisk(t *testing.T) {
	dir := tmpfs(t, "8m")
	path := filepath.Join(dir, "edgecore.db")
	s := openTest(t, path)
	apply(t, s, OutboxPut("o", []byte("r")))
	for i := range 200 {
		apply(t, s, Upsert(meta(fmt.Sprintf("a/pod/p%d", i), strings.Repeat("x", 4000))))
	}
	// Close and open again: the log starts from nothing, and needs room for the first delete.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, path)
	stuffing := stuff(t, dir)
	if err := s.Apply(t.Context(), Upsert(meta("a/pod/large", strings.Repeat("x", 40_000)))); !errors.Is(err, ErrFull) {
		t.Fatalf("err = %v, want ErrFull: the disk is not full", err)
	}
	for i := range 20 {
		apply(t, s, Delete(fmt.Sprintf("a/pod/p%d", i)))
	}
	list, err := s.Outbox(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("Outbox returned %v, %v; want one report", list, err)
	}
	apply(t, s, OutboxAck(list[0].Key, list[0].Seq), DeleteIf("a/pod/p20", func([]byte) bool { return true }))
	if err := s.Apply(t.Context(), Upsert(meta("a/pod/small", "x"))); !errors.Is(err, ErrFull) {
		t.Errorf("err = %v, want ErrFull: the reserve is for deletes", err)
	}
	if err := os.Remove(stuffing); err != nil {
		t.Fatal(err)
	}
	apply(t, s, Upsert(meta("a/pod/small", "x")))
	if info, err := os.Stat(path + ".reserve"); err != nil {
		t.Error(err)
	} else if got := info.Size(); got != defaultReserve {
		t.Errorf("the reserve after a write has %d bytes, want %d", got, defaultReserve)
	}
	if list, err := s.List(t.Context(), "pod"); err != nil || len(list) != 200-21+1 {
		t.Errorf("%d rows, %v; want %d", len(list), err, 200-21+1)
	}
}

// TestOpenOnFullDisk: a device that boots with a full disk knows its pods.
func TestOpenOnFullDisk(t *testing.T) {
	dir := tmpfs(t, "8m")
	path := filepath.Join(dir, "edgecore.db")
	s := openTest(t, path)
	apply(t, s, Upsert(meta("a/pod/x", "1")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	stuffing := stuff(t, dir)
	s = openTest(t, path)
	if got := value(t, s, "a/pod/x"); got != "1" {
		t.Errorf("a/pod/x is %q, want 1", got)
	}
	if err := os.Remove(stuffing); err != nil {
		t.Fatal(err)
	}
	apply(t, s, Upsert(meta("a/pod/y", "1")))
}

// TestLargeDoesNotFailSmall: Applies that share a transaction with one for which there is no room are done.
func TestLargeDoesNotFailSmall(t *testing.T) {
	dir := tmpfs(t, "4m")
	s := openTest(t, filepath.Join(dir, "edgecore.db"))
	large := strings.Repeat("x", 8<<20)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if i%8 == 0 {
				if err := s.Apply(context.Background(), Upsert(meta("a/pod/large", large))); !errors.Is(err, ErrFull) {
					t.Errorf("err = %v, want ErrFull", err)
				}
				return
			}
			if err := s.Apply(context.Background(), Upsert(meta(fmt.Sprintf("a/pod/p%d", i), "1"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := s.List(t.Context(), "pod"); err != nil || len(list) != 35 {
		t.Errorf("%d rows, %v; want 35", len(list), err)
	}
}
