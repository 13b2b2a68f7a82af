package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Record is what is known of this boot: whether the one before ended without notice, which images were found whole
// since, and which were brought again without proof. It is a file that is written when the agent starts and ends, and
// when an image was looked at after a failure. Where it cannot be written, it holds as long as the agent.
type Record struct {
	file string

	mu  sync.Mutex
	doc record
}

// record is the file's content.
type record struct {
	// Boot is the kernel's id of the boot.
	Boot string `json:"boot"`
	// Clean: the agent that wrote it has ended in order.
	Clean bool `json:"clean"`
	// Unclean: the boot before this one ended without notice.
	Unclean bool `json:"unclean"`
	// Good are the ids of images that are whole, Replaced of those that were brought again.
	Good     []string `json:"good,omitempty"`
	Replaced []string `json:"replaced,omitempty"`
	// Damaged are the ids of images that are known to be damaged, from this boot or an earlier one: when their bad
	// blobs have gone, nothing else tells.
	Damaged []string `json:"damaged,omitempty"`
	// Fetched are the names by which blobs are being fetched, from this boot or an earlier one: the runtime may take
	// them for images.
	Fetched []string `json:"fetched,omitempty"`
}

const (
	// recordName is the file in the agent's folder.
	recordName = "images.checked"
	// maxRecord bounds what is read of it, maxListed each list in it.
	maxRecord = 1 << 20
	maxListed = 1024
)

// RecordFile is where the record lies in an agent's folder.
func RecordFile(dir string) string { return filepath.Join(dir, recordName) }

// OpenRecord reads what is known, and notes that an agent runs; without a folder nothing is kept. The record is of use
// whatever the error says.
func OpenRecord(dir, boot string) (*Record, error) {
	r := &Record{}
	var before *record
	var err error
	if dir != "" {
		r.file = RecordFile(dir)
		before, err = readRecord(r.file)
	}
	r.doc = nextRecord(before, boot)
	return r, errors.Join(err, r.write())
}

// nextRecord is what is known in this boot, given the record that was found, or nil. It is pure.
func nextRecord(before *record, boot string) record {
	switch {
	case before == nil:
		return record{Boot: boot}
	case before.Boot == boot:
		now := *before
		now.Clean = false
		return now
	}
	return record{Boot: boot, Unclean: !before.Clean, Damaged: before.Damaged, Fetched: before.Fetched}
}

// readRecord returns nil where there is none. One that a power cut left half-written is a proof of it.
func readRecord(file string) (*record, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return &record{}, nil // of a disk that lost it
	}
	return decodeRecord(data), nil
}

func decodeRecord(data []byte) *record {
	var doc record
	if json.Unmarshal(data, &doc) != nil {
		return &record{}
	}
	return &doc
}

// Unclean reports whether the device went down without notice before this boot.
func (r *Record) Unclean() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.doc.Unclean
}

// Good reports whether an image was found whole in this boot.
func (r *Record) Good(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.doc.Good, id)
}

// SetGood notes that an image is whole.
func (r *Record) SetGood(id string) error {
	return r.update(func(doc *record) { doc.Good, doc.Damaged = listed(doc.Good, id), unlisted(doc.Damaged, id) })
}

// Damaged reports whether an image was found damaged and not put right since.
func (r *Record) Damaged(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.doc.Damaged, id)
}

// SetDamaged notes that an image is damaged.
func (r *Record) SetDamaged(id string) error {
	return r.update(func(doc *record) { doc.Damaged = listed(doc.Damaged, id) })
}

// Replaced reports whether an image was brought again in this boot.
func (r *Record) Replaced(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.doc.Replaced, id)
}

// SetReplaced notes that it was.
func (r *Record) SetReplaced(id string) error {
	return r.update(func(doc *record) { doc.Replaced = listed(doc.Replaced, id) })
}

// Fetched returns the names by which blobs are being fetched.
func (r *Record) Fetched() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.doc.Fetched)
}

// SetFetched notes that a blob is about to be fetched by a name. It must not be fetched if that fails.
func (r *Record) SetFetched(name string) error {
	return r.update(func(doc *record) { doc.Fetched = listed(doc.Fetched, name) })
}

// DropFetched notes that the runtime does not take a name for an image any more.
func (r *Record) DropFetched(name string) error {
	return r.update(func(doc *record) { doc.Fetched = unlisted(doc.Fetched, name) })
}

// Close notes that the agent ends in order.
func (r *Record) Close() error {
	return r.update(func(doc *record) { doc.Clean = true })
}

func listed(list []string, id string) []string {
	if id == "" || slices.Contains(list, id) {
		return list
	}
	list = append(list, id)
	return list[max(0, len(list)-maxListed):]
}

func unlisted(list []string, id string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(one string) bool { return one == id })
}

func (r *Record) update(change func(doc *record)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.doc)
	return r.writeLocked()
}

func (r *Record) write() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writeLocked()
}

// writeLocked replaces the file in one step.
func (r *Record) writeLocked() error {
	if r.file == "" {
		return nil
	}
	data, err := json.Marshal(r.doc)
	if err != nil {
		return err
	}
	err = os.MkdirAll(filepath.Dir(r.file), 0o750)
	tmp := r.file + ".new"
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	}
	if err == nil {
		_, err = f.Write(append(data, '\n'))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(tmp, r.file)
	}
	if err != nil {
		return fmt.Errorf("record which images are intact: %w", err)
	}
	return nil
}
