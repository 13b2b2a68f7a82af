package store

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// insert stores 500 pods of 4 KB, one Apply each, and returns how long that took.
func insert(b testing.TB, s *Store, senders int, round int) time.Duration {
	b.Helper()
	value := bytes.Repeat([]byte("x"), 4096)
	jobs := make(chan int)
	began := time.Now()
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for i := range jobs {
				m := Meta{Key: fmt.Sprintf("default/pod/p%d-%d", round, i), Type: "pod", Value: value}
				if err := s.Apply(context.Background(), Upsert(m)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range 500 {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	return time.Since(began)
}

// BenchmarkGroupCommit inserts 500 pods from 16 senders and reports how many times the rate of one sender that is, in
// the same run, and how many Applies share a transaction. On a virtual disk, whose fsync costs next to nothing, a
// factor of 3 or more is expected; with a real fsync it is higher.
func BenchmarkGroupCommit(b *testing.B) {
	s := openTest(b, filepath.Join(b.TempDir(), "edgecore.db"))
	commits := countCommits(b, s)
	var alone, together time.Duration
	var shared int64
	for i := range b.N {
		alone += insert(b, s, 1, 2*i)
		before := commits.Load()
		together += insert(b, s, 16, 2*i+1)
		shared += commits.Load() - before
	}
	b.ReportMetric(float64(alone)/float64(together), "times-one-sender")
	b.ReportMetric(float64(500*b.N)/float64(shared), "applies/commit")
}

func BenchmarkInsert500Pods(b *testing.B) {
	for _, senders := range []int{1, 16} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			s := openTest(b, filepath.Join(b.TempDir(), "edgecore.db"))
			var total time.Duration
			for i := range b.N {
				total += insert(b, s, senders, i)
			}
			b.ReportMetric(float64(500*b.N)/total.Seconds(), "pods/s")
		})
	}
}

func BenchmarkRead500Pods(b *testing.B) {
	s := openTest(b, filepath.Join(b.TempDir(), "edgecore.db"))
	insert(b, s, 16, 0)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if err := s.Each(b.Context(), "pod", func(Meta) error { n++; return nil }); err != nil || n != 500 {
			b.Fatalf("Each read %d pods, %v; want 500", n, err)
		}
	}
}

func BenchmarkUnchangedUpsert(b *testing.B) {
	s := openTest(b, filepath.Join(b.TempDir(), "edgecore.db"))
	m := Meta{Key: "default/pod/p", Type: "pod", Value: bytes.Repeat([]byte("x"), 4096)}
	b.ReportAllocs()
	for b.Loop() {
		apply(b, s, Upsert(m))
	}
}

// BenchmarkList500Pods reads the pods of a full node, as the agent does at its start.
func BenchmarkList500Pods(b *testing.B) {
	s := openTest(b, filepath.Join(b.TempDir(), "edgecore.db"))
	insert(b, s, 16, 0)
	b.ReportAllocs()
	for b.Loop() {
		if list, err := s.List(b.Context(), "pod"); err != nil || len(list) != 500 {
			b.Fatalf("List returned %d pods, %v; want 500", len(list), err)
		}
	}
}
