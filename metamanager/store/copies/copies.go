// Package copies finds and removes the files that the store's migrations, repairs and rollbacks leave beside the store.
// Each of them holds all secrets of the node's pods, so none is kept for longer than two weeks. For a copy from before
// a migration, the two weeks begin when the device is connected with the new version: until then an older version may
// have to come back to it. The names are those that package store makes.
package copies

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/readdir"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

const (
	// maxAge is how long a copy of the store is kept.
	maxAge = 14 * 24 * time.Hour
	// maxBefore is how many copies from before migrations are kept.
	maxBefore = 3
	// firstCheck is the delay of the first check: a clock that is wrong when the device boots is set by then.
	firstCheck = time.Hour
	// checkPeriod is the time between two checks.
	checkPeriod = 24 * time.Hour
	// timeLayout is the layout of the time in the name of a store that was set aside.
	timeLayout = "20060102T150405.000Z"
)

// file is one file of a copy of the store.
type file struct {
	path string
	// kind is "before" (a migration), "corrupt" (set aside by a repair), "newer" (set aside by a rollback) or "partial"
	// (unfinished, and useless).
	kind string
	// of names the copy that this file belongs to: a write-ahead log belongs to its database.
	of string
	at time.Time
}

// list returns the files of the copies of a store.
func list(store string) ([]file, error) {
	entries, err := readdir.Quiet(filepath.Dir(store))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var copies []file
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(store))
		if !ok || e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		if c, ok := parse(rest, info.ModTime()); ok {
			c.path = filepath.Join(filepath.Dir(store), e.Name())
			copies = append(copies, c)
		}
	}
	return copies, nil
}

// parse reads the part of a file's name that follows the name of the store, and reports whether it is a copy's.
func parse(rest string, written time.Time) (file, bool) {
	of := rest
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		of = strings.TrimSuffix(of, suffix)
	}
	c := file{of: of, at: written}
	switch {
	case strings.HasPrefix(of, ".corrupt-"), strings.HasPrefix(of, ".newer-"):
		c.kind, _, _ = strings.Cut(of[1:], "-")
		if at, err := time.Parse(timeLayout, of[strings.LastIndexByte(of, '-')+1:]); err == nil {
			c.at = at // the file was written before it was set aside
		}
	case of == ".rebuild", of == ".rollback", strings.HasPrefix(of, ".before-") && strings.HasSuffix(of, ".partial"):
		c.kind = "partial"
	case strings.HasPrefix(of, ".before-"):
		c.kind = "before"
	default:
		return file{}, false
	}
	return c, true
}

// expired returns the files to remove: partial copies, those older than maxAge, and, of the copies made before a
// migration, all but the newest. The age of those counts from when they were made or from since, what is later.
func expired(copies []file, now, since time.Time) []file {
	kept := newestBefore(copies)
	return slices.DeleteFunc(slices.Clone(copies), func(c file) bool {
		switch c.kind {
		case "partial":
			return false
		case "before":
			return slices.Contains(kept, c.of) && (now.Sub(c.at) <= maxAge || now.Sub(since) <= maxAge)
		}
		return now.Sub(c.at) <= maxAge
	})
}

// newestBefore returns the names of the newest copies that were made before a migration.
func newestBefore(copies []file) []string {
	list := slices.DeleteFunc(slices.Clone(copies), func(c file) bool { return c.kind != "before" })
	smallsort.SortFunc(list, func(a, b file) int {
		return cmp.Or(b.at.Compare(a.at), len(b.of)-len(a.of), cmp.Compare(b.of, a.of))
	})
	var names []string
	for _, c := range list {
		if !slices.Contains(names, c.of) && len(names) < maxBefore {
			names = append(names, c.of)
		}
	}
	return names
}

// CleanupOptions change a cleanup; the zero value is the default.
type CleanupOptions struct {
	// Incomplete reports whether the store has lost rows that a copy may have. While it does, nothing is removed. It
	// may be nil.
	Incomplete func() bool
	// Connected returns since when the device has been connected with the present schema of the store; zero if it has
	// not been yet, or if the clock is not set. Nil if there is no cloud to be connected to.
	Connected func() time.Time
}

// StartCleanup starts a goroutine that removes expired copies of an open store until ctx ends; wait returns when the
// goroutine has ended.
func StartCleanup(ctx context.Context, store string, opts CleanupOptions) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for delay := firstCheck; retry.Sleep(ctx, delay); delay = checkPeriod {
			if opts.Incomplete != nil && opts.Incomplete() {
				continue
			}
			now := time.Now()
			var since time.Time
			if opts.Connected != nil {
				if since = opts.Connected(); since.IsZero() {
					since = now
				}
			}
			if err := removeExpired(store, now, since); err != nil {
				klog.ErrorS(err, "Old copies of the store not removed", "store", store)
			}
		}
	})
	return wg.Wait
}

func removeExpired(store string, now, since time.Time) error {
	copies, err := list(store)
	errs := []error{err}
	for _, c := range expired(copies, now, since) {
		if err := remove(c.path); err != nil {
			errs = append(errs, err)
			continue
		}
		klog.InfoS("Old copy of the store removed", "path", c.path, "made", c.at.UTC().Format(time.DateOnly))
	}
	return errors.Join(errs...)
}

// AnyBefore reports whether there is a copy from before a migration.
func AnyBefore(store string) bool {
	copies, err := list(store)
	return err == nil && slices.ContainsFunc(copies, func(c file) bool { return c.kind == "before" })
}

// Files returns the paths of the store and of all that belongs to it, its copies included. Some may not exist.
func Files(store string) ([]string, error) {
	paths := []string{store}
	for _, suffix := range []string{"-wal", "-shm", "-journal", ".reserve", ".open"} {
		paths = append(paths, store+suffix)
	}
	copies, err := list(store)
	for _, c := range copies {
		paths = append(paths, c.path)
	}
	return paths, err
}

// Remove removes the store and all that belongs to it.
func Remove(store string) error {
	paths, err := Files(store)
	for _, path := range paths {
		err = errors.Join(err, remove(path))
	}
	if d, openErr := os.Open(filepath.Dir(store)); openErr == nil {
		err = errors.Join(err, d.Sync(), d.Close()) // so that a power cut does not bring them back
	}
	return err
}

// remove removes a file, if there is one.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
