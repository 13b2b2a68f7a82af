// Package copies finds and removes the files that the store's migrations and repairs leave beside the store. Each of
// them holds all secrets of the node's pods, so none is kept for longer than two weeks. The names are those that
// package store makes.
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
)

const (
	// maxAge is how long a copy of the store is kept.
	maxAge = 14 * 24 * time.Hour
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
	// kind is "before" (a migration), "corrupt" (set aside by a repair) or "partial" (unfinished, and useless).
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
	switch stamp, isCorrupt := strings.CutPrefix(of, ".corrupt-"); {
	case isCorrupt:
		c.kind = "corrupt"
		if at, err := time.Parse(timeLayout, stamp); err == nil {
			c.at = at // the file was written before it was set aside
		}
	case of == ".rebuild", strings.HasPrefix(of, ".before-") && strings.HasSuffix(of, ".partial"):
		c.kind = "partial"
	case strings.HasPrefix(of, ".before-"):
		c.kind = "before"
	default:
		return file{}, false
	}
	return c, true
}

// expired returns the files to remove: partial copies, those older than maxAge, and, of the copies made before a
// migration, all but the newest.
func expired(copies []file, now time.Time) []file {
	newest := ""
	var at time.Time
	for _, c := range copies {
		if c.kind != "before" {
			continue
		}
		if newest == "" || cmp.Or(c.at.Compare(at), len(c.of)-len(newest), cmp.Compare(c.of, newest)) > 0 {
			newest, at = c.of, c.at
		}
	}
	return slices.DeleteFunc(slices.Clone(copies), func(c file) bool {
		superseded := c.kind == "before" && c.of != newest
		return c.kind != "partial" && !superseded && now.Sub(c.at) <= maxAge
	})
}

// StartCleanup starts a goroutine that removes expired copies of an open store until ctx ends; wait returns when the
// goroutine has ended. While incomplete returns true, nothing is removed: the store has lost rows, and a copy may have
// them.
func StartCleanup(ctx context.Context, store string, incomplete func() bool) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for delay := firstCheck; retry.Sleep(ctx, delay); delay = checkPeriod {
			if incomplete() {
				continue
			}
			if err := removeExpired(store, time.Now()); err != nil {
				klog.ErrorS(err, "Old copies of the store not removed", "store", store)
			}
		}
	})
	return wg.Wait
}

func removeExpired(store string, now time.Time) error {
	copies, err := list(store)
	errs := []error{err}
	for _, c := range expired(copies, now) {
		if err := remove(c.path); err != nil {
			errs = append(errs, err)
			continue
		}
		klog.InfoS("Old copy of the store removed", "path", c.path, "made", c.at.UTC().Format(time.DateOnly))
	}
	return errors.Join(errs...)
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
