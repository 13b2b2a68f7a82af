// Package membound shows that a function allocates no more than it may. It is for fuzz targets of decoders whose input
// comes from a node, a pod or a device: a small input must not make the agent or cloudcore allocate much.
package membound

import (
	"bytes"
	"compress/gzip"
	"runtime"
	"strings"
	"testing"
)

// Base is what a decoder may allocate for an input of no bytes: readers and buffers of a fixed size, errors, and what
// the standard library allocates once, such as its knowledge of a type that encoding/json sees for the first time.
const Base = 256 << 10

// Linear is the usual limit: Base, and perByte for each byte of an input of size bytes.
func Linear(size, perByte int) uint64 { return Base + uint64(size)*uint64(perByte) }

// Check calls f once, and fails the test if that allocated more than limit bytes. All allocations count, also those
// that are garbage by now: the sum is the same in each run, while the size of the heap depends on the collector.
//
// Allocations of the whole process count, because f may have goroutines of its own. So nothing else may run beside:
// neither tests that call t.Parallel nor goroutines that an earlier test left. Fuzz targets fulfil that. They run after
// all tests, one input after the other, and the goroutine with which package testing waits for its coordinator
// allocates nothing meanwhile. The collector's own memory is not on the heap and does not count.
func Check(t testing.TB, limit uint64, f func()) {
	t.Helper()
	if got := Allocated(f); got > limit {
		t.Errorf("allocated %d bytes, want at most %d", got, limit)
	}
}

// Allocated is how many bytes the process allocates while f runs.
func Allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before) // stops the world and takes the caches of all threads into account
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Repeat is a text of about size bytes: head, part as often as it fits with sep between, and tail.
func Repeat(head, part, sep, tail string, size int) string {
	times := max((size-len(head)-len(tail))/(len(part)+len(sep)), 1)
	return head + strings.Repeat(part+sep, times-1) + part + tail
}

// JSON are texts of about size bytes that take far more memory once they are decoded: in each of them head and tail
// surround lists of the smallest elements, many keys, or deep nesting.
func JSON(head, tail string, size int) []string {
	const deepest = 9_000 // encoding/json refuses 10,000
	nested := min(size/2, deepest)
	return []string{
		Repeat(head+"[", "{}", ",", "]"+tail, size),
		Repeat(head+"[", "[]", ",", "]"+tail, size),
		Repeat(head+"[", "0", ",", "]"+tail, size),
		Repeat(head+"[", `""`, ",", "]"+tail, size),
		Repeat(head+"[", "null", ",", "]"+tail, size),
		Repeat(head+"{", `"a":{}`, ",", "}"+tail, size),
		head + strings.Repeat("[", nested) + strings.Repeat("]", nested) + tail,
		head + strings.Repeat(`{"a":`, nested/3) + "0" + strings.Repeat("}", nested/3) + tail,
		head + `"` + strings.Repeat("x", size) + `"` + tail,
		head + `"` + strings.Repeat(`\u0000`, size/6) + `"` + tail,
	}
}

// Gzip compresses data as well as it can.
func Gzip(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
