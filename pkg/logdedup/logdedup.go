// Package logdedup limits repeated log messages: a device with a small disk or journal has no one watching.
//
// It stands between klog and its output. The first equal lines (ignoring their time) pass; then one a minute passes,
// with the number of suppressed lines. Each call site is limited as well, whatever it logs, so that no loop fills a
// disk even if its lines differ in a number. Lines of panics and Fatal always pass.
package logdedup

import (
	"bytes"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
)

const (
	// sameBurst equal lines pass within samePeriod; then one in each.
	sameBurst  = 5
	samePeriod = time.Minute
	// siteBurst lines of one call site pass within sitePeriod; then one in each siteThen.
	siteBurst  = 300
	sitePeriod = time.Minute
	siteThen   = time.Second
	// kept is how many different lines and call sites are remembered.
	kept = 256
	// verboseLevel is the verbosity from which nothing is suppressed: someone is watching.
	verboseLevel = 4
)

// Writer limits a log. Its methods may be called from any goroutine.
type Writer struct {
	out io.Writer
	now func() time.Time

	mu   sync.Mutex
	seed maphash.Seed
	// seen holds entries by the hash of their text: texts are long, and two with the same hash would only share limits.
	seen *lru.Cache
}

// entry is the state of a line or a call site.
type entry struct {
	// began is when the current period began, passed how many lines passed in it, left how many were suppressed since
	// one passed.
	began        time.Time
	passed, left int
	last         time.Time
}

// New makes a Writer to out.
func New(out io.Writer) *Writer {
	return &Writer{out: out, now: time.Now, seed: maphash.MakeSeed(), seen: lru.New(kept)}
}

// Install makes klog write to out through a Writer, unless it is verbose.
func Install(out io.Writer) error {
	if klog.V(verboseLevel).Enabled() {
		return nil
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	verbosity := flags.Lookup("v").Value.String()
	for name, value := range map[string]string{
		"logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true",
		"v": verbosity,
	} {
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("log flag %s: %w", name, err)
		}
	}
	klog.SetOutput(New(out))
	return nil
}

// Write takes one record of klog.
func (w *Writer) Write(record []byte) (int, error) {
	place, text, ok := split(record)
	if !ok {
		return w.out.Write(record)
	}
	w.mu.Lock()
	now := w.now()
	same := w.decide(text, now, sameBurst, samePeriod, samePeriod)
	pass := same.passes
	if pass {
		byPlace := w.decide(place, now, siteBurst, sitePeriod, siteThen)
		pass, same.left = byPlace.passes, max(same.left, byPlace.left)
	}
	w.mu.Unlock()
	if !pass {
		return len(record), nil
	}
	line := record
	if same.left > 0 {
		line = fmt.Appendf(bytes.TrimSuffix(bytes.Clone(record), []byte("\n")), " leftOut=%d\n", same.left)
	}
	if _, err := w.out.Write(line); err != nil {
		return 0, err
	}
	return len(record), nil
}

// verdict is whether a line passes, and how many were suppressed before it.
type verdict struct {
	passes bool
	left   int
}

// decide decides on a line: burst of its kind pass within a period, then one per pause. w.mu is held.
func (w *Writer) decide(text string, now time.Time, burst int, period, pause time.Duration) verdict {
	e := w.entry(text)
	if e.passed == 0 || now.Sub(e.last) >= period { // it was quiet for a while
		e.began, e.passed = now, 0
	}
	e.last, e.passed = now, e.passed+1
	if e.passed <= burst || now.Sub(e.began) >= pause {
		if e.passed > burst {
			e.began = now
		}
		left := e.left
		e.left = 0
		return verdict{true, left}
	}
	e.left++
	return verdict{}
}

// entry returns the entry of a text; w.mu is held.
func (w *Writer) entry(text string) *entry {
	key := maphash.String(w.seed, text)
	if e, ok := w.seen.Get(key); ok {
		return e.(*entry)
	}
	e := &entry{}
	w.seen.Add(key, e)
	return e
}

// split splits a klog record: "I0102 15:04:05.000000    1234 file.go:56] message". ok is false for other formats, and
// for fatal records.
func split(record []byte) (place, text string, ok bool) {
	head, said, ok := bytes.Cut(record, []byte("] "))
	if !ok || len(head) == 0 {
		return "", "", false
	}
	switch head[0] {
	case 'I', 'W', 'E':
	default:
		return "", "", false
	}
	fields := bytes.Fields(head)
	if len(fields) != 4 || !bytes.Contains(fields[3], []byte(":")) {
		return "", "", false
	}
	place = string(fields[3])
	return place, place + " " + string(said), true
}
