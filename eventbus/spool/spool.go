// Package spool keeps messages in a file until they are delivered: a queue that is bounded in number and bytes, drops
// its oldest messages, and survives the process being killed at any moment.
//
// It is kind to SD cards. There is no file while the queue has never been used, and nothing is written but new
// messages and, once in a while, how far the delivery is. When the queue is empty, the file is cut to nothing. A
// message is in the file when Append returns, so it survives kill -9; Run flushes the file at intervals, so a power
// cut loses at most the messages of the last interval.
//
// After a crash, up to ackEvery messages that were delivered are delivered again: it is at least once.
package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

// The defaults of Limits.
const (
	DefaultMessages  = 10_000
	DefaultBytes     = 16 << 20
	DefaultSyncEvery = 2 * time.Second
)

const (
	// ackEvery is how many deliveries are recorded at once.
	ackEvery = 64
	// slack is how large the file may become beyond twice its messages before they are copied to a new one.
	slack = 1 << 20
)

// Limits bound the queue; a limit of 0 is its default. The file can be twice as large as Bytes, and 1 MiB.
type Limits struct {
	Messages int
	// Bytes are those of the messages' records: topics, payloads and 20 bytes each.
	Bytes int64
	// SyncEvery is how often Run flushes the file to the disk while messages are added.
	SyncEvery time.Duration
}

// Message is what the queue holds.
type Message struct {
	Topic   string
	Payload []byte
	Retain  bool
}

// place is where a message is in the file.
type place struct {
	seq    uint64
	offset int64
	size   int
}

// Spool is the queue. All methods may be called by any goroutine.
type Spool struct {
	path    string
	limits  Limits
	changed chan struct{}
	dirty   chan struct{}

	mu      sync.Mutex
	file    *os.File // nil until there is something to write
	end     int64    // of the file
	queue   []place
	bytes   int64  // of the records in queue
	next    uint64 // sequence number of the next message
	acked   int    // deliveries that the file does not record yet
	dropped int64
	closed  bool
}

// Open reads the queue of a file, or prepares to make it. Damage at the end of the file, as a crash leaves it, is cut
// off; lost says how many bytes were.
func Open(path string, l Limits) (s *Spool, lost int64, err error) {
	if l.Messages <= 0 {
		l.Messages = DefaultMessages
	}
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	if l.SyncEvery <= 0 {
		l.SyncEvery = DefaultSyncEvery
	}
	s = &Spool{path: path, limits: l, changed: make(chan struct{}, 1), dirty: make(chan struct{}, 1), next: 1}
	_ = os.Remove(path + newSuffix) // of a copy that was not finished
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return s, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("MQTT queue: %w", err)
	}
	s.file = f
	if lost, err = s.load(); err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("MQTT queue %s: %w", path, err)
	}
	return s, lost, nil
}

// load reads the file's records into the queue, and cuts the file after the last good one.
func (s *Spool) load() (lost int64, err error) {
	info, err := s.file.Stat()
	if err != nil {
		return 0, err
	}
	r := newReader(s.file)
	for {
		rec, err := r.next()
		if err == io.EOF || errors.Is(err, errDamaged) {
			break
		}
		if err != nil {
			return 0, err
		}
		if rec.kind == kindHead {
			s.dropBefore(rec.seq)
			s.next = max(s.next, rec.seq)
			s.end = r.offset
			continue
		}
		if rec.seq < s.next || rec.seq == math.MaxUint64 {
			break // numbers grow
		}
		s.end = r.offset
		s.queue = append(s.queue, place{rec.seq, rec.offset, rec.size})
		s.bytes += int64(rec.size)
		s.next = rec.seq + 1
	}
	s.trim()
	if lost = info.Size() - s.end; lost > 0 {
		if err := s.file.Truncate(s.end); err != nil {
			return 0, err
		}
	}
	return lost, nil
}

// dropBefore forgets the messages with lower numbers.
func (s *Spool) dropBefore(seq uint64) {
	for len(s.queue) > 0 && s.queue[0].seq < seq {
		s.pop()
	}
}

func (s *Spool) pop() {
	s.bytes -= int64(s.queue[0].size)
	s.queue = s.queue[1:]
}

// trim drops the oldest messages until the queue is within its limits.
func (s *Spool) trim() {
	for len(s.queue) > s.limits.Messages || s.bytes > s.limits.Bytes {
		s.pop()
		s.dropped++
	}
}

// Append adds a message. When it returns nil, the message is in the file.
func (s *Spool) Append(m Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("MQTT queue %s: %w", s.path, os.ErrClosed)
	}
	rec := encode(s.next, m)
	if int64(len(rec)) > s.limits.Bytes || len(rec) > maxRecord {
		return fmt.Errorf("MQTT queue %s: a message of %d bytes to topic %q does not fit", s.path, len(m.Payload),
			m.Topic)
	}
	if err := s.create(); err != nil {
		return fmt.Errorf("MQTT queue: %w", err)
	}
	if err := s.write(rec); err != nil {
		return fmt.Errorf("MQTT queue %s: %w", s.path, err)
	}
	s.queue = append(s.queue, place{s.next, s.end - int64(len(rec)), len(rec)})
	s.bytes += int64(len(rec))
	s.next++
	s.trim()
	signal(s.changed)
	signal(s.dirty)
	if s.end > 2*s.bytes+slack && s.end > s.limits.Bytes {
		return s.compact()
	}
	return nil
}

func (s *Spool) create() error {
	if s.file != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	s.file, s.end = f, 0
	return syncFolder(s.path)
}

// syncFolder makes the name of a new file durable.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write appends bytes, or leaves the file as it was.
func (s *Spool) write(p []byte) error {
	if _, err := s.file.WriteAt(p, s.end); err != nil {
		return errors.Join(err, s.file.Truncate(s.end))
	}
	s.end += int64(len(p))
	return nil
}

// Peek returns up to n messages that are not delivered, the oldest first, and the number to acknowledge each with.
func (s *Spool) Peek(n int) ([]Message, []uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Message
	var seqs []uint64
	for _, p := range s.queue[:min(n, len(s.queue))] {
		buf := make([]byte, p.size)
		if _, err := s.file.ReadAt(buf, p.offset); err != nil {
			return nil, nil, fmt.Errorf("MQTT queue %s: %w", s.path, err)
		}
		rec, err := decode(buf)
		if err != nil {
			return nil, nil, fmt.Errorf("MQTT queue %s: %w", s.path, err)
		}
		out, seqs = append(out, rec.message), append(seqs, p.seq)
	}
	return out, seqs, nil
}

// Ack removes all messages up to seq, which have been delivered.
func (s *Spool) Ack(seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.queue)
	s.dropBefore(seq + 1)
	s.acked += before - len(s.queue)
	switch {
	case s.acked == 0 || s.file == nil:
		return nil
	case len(s.queue) == 0:
		// A number that was used is not used again: the record of a delivery must not remove a newer message.
		s.acked, s.end, s.queue = 0, 0, nil
		if err := s.file.Truncate(0); err != nil {
			return fmt.Errorf("MQTT queue %s: %w", s.path, err)
		}
	case s.acked >= ackEvery:
		s.acked = 0
		if err := s.write(encodeHead(s.queue[0].seq)); err != nil {
			return fmt.Errorf("MQTT queue %s: %w", s.path, err)
		}
	}
	return nil
}

// Clear drops all messages, after Peek has found the file unreadable. They count as dropped.
func (s *Spool) Clear() error {
	s.mu.Lock()
	s.dropped += int64(len(s.queue))
	last := s.next - 1
	s.mu.Unlock()
	return s.Ack(last)
}

const newSuffix = ".new"

// compact copies the queue to a new file, which takes the place of the old one.
func (s *Spool) compact() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("MQTT queue %s: copy it: %w", s.path, err)
		}
	}()
	f, err := os.OpenFile(s.path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	fail := func(err error) error { return errors.Join(err, f.Close(), os.Remove(f.Name())) }
	places := make([]place, 0, len(s.queue))
	var end int64
	for _, p := range s.queue {
		buf := make([]byte, p.size)
		if _, err := s.file.ReadAt(buf, p.offset); err != nil {
			return fail(err)
		}
		if _, err := f.WriteAt(buf, end); err != nil {
			return fail(err)
		}
		places = append(places, place{p.seq, end, p.size})
		end += int64(p.size)
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	if err := os.Rename(f.Name(), s.path); err != nil {
		return fail(err)
	}
	_ = s.file.Close() // it has no name any more
	s.file, s.end, s.queue, s.acked = f, end, places, 0
	return syncFolder(s.path)
}

// Run flushes the file to the disk until ctx ends.
func (s *Spool) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return s.sync()
		case <-s.dirty:
		}
		retry.Sleep(ctx, s.limits.SyncEvery)
		if err := s.sync(); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (s *Spool) sync() error {
	s.mu.Lock()
	f, empty, closed := s.file, len(s.queue) == 0, s.closed
	s.mu.Unlock()
	if f == nil || empty || closed {
		return nil
	}
	// Without mu: a flush can take seconds. The file may be closed meanwhile, after it was copied.
	if err := f.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("MQTT queue %s: %w", s.path, err)
	}
	return nil
}

// Changed receives a value after Append.
func (s *Spool) Changed() <-chan struct{} { return s.changed }

// Len returns how many messages wait, and the bytes of their records.
func (s *Spool) Len() (messages int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue), s.bytes
}

// Dropped returns how many messages were dropped since Open because the queue was full.
func (s *Spool) Dropped() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// Close records what was delivered and closes the file.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.file == nil {
		return nil
	}
	var err error
	if s.acked > 0 && len(s.queue) > 0 {
		err = s.write(encodeHead(s.queue[0].seq))
	}
	if err = errors.Join(err, s.file.Close()); err != nil {
		return fmt.Errorf("MQTT queue %s: %w", s.path, err)
	}
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
