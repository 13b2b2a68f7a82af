package main

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
)

const (
	// copyAge is how long a copy of the store is kept. It has all secrets of the device's pods.
	copyAge = 14 * 24 * time.Hour
	// copyCheck is how long the agent runs before it looks for old copies, so that a clock which is wrong at the start of a
	// device is set by then; copyPeriod is how often it looks again.
	copyCheck  = time.Hour
	copyPeriod = 24 * time.Hour
	// copyTime is the time in the name of a store that was set aside.
	copyTime = "20060102T150405.000Z"
)

// storeCopy is a file beside the store that holds what the store held.
type storeCopy struct {
	path string
	// kind is "before" (a migration), "corrupt" (set aside by a repair) or "partial" (neither use nor end).
	kind string
	// of is the copy to which this file belongs: a log belongs to its database.
	of string
	at time.Time
}

// copiesOf returns the copies of a store.
func copiesOf(store string) ([]storeCopy, error) {
	entries, err := readdir.Quiet(filepath.Dir(store))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var copies []storeCopy
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(store))
		if !ok || e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		if c, ok := parseCopy(rest, info.ModTime()); ok {
			c.path = filepath.Join(filepath.Dir(store), e.Name())
			copies = append(copies, c)
		}
	}
	return copies, nil
}

// parseCopy reads what follows the store's name in that of a copy. It is pure.
func parseCopy(rest string, written time.Time) (storeCopy, bool) {
	of := rest
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		of = strings.TrimSuffix(of, suffix)
	}
	c := storeCopy{of: of, at: written}
	switch stamp, isCorrupt := strings.CutPrefix(of, ".corrupt-"); {
	case isCorrupt:
		c.kind = "corrupt"
		if at, err := time.Parse(copyTime, stamp); err == nil {
			c.at = at // the file was written before it was set aside
		}
	case of == ".rebuild", strings.HasPrefix(of, ".before-") && strings.HasSuffix(of, ".partial"):
		c.kind = "partial"
	case strings.HasPrefix(of, ".before-"):
		c.kind = "before"
	default:
		return storeCopy{}, false
	}
	return c, true
}

// expired returns which copies have no use any more: what is partial, what is older than copyAge, and all copies made before
// a migration but the newest. It is pure.
func expired(copies []storeCopy, now time.Time) []storeCopy {
	newest := ""
	var at time.Time
	for _, c := range copies {
		if c.kind == "before" && (newest == "" || cmp.Or(c.at.Compare(at), len(c.of)-len(newest), cmp.Compare(c.of, newest)) > 0) {
			newest, at = c.of, c.at
		}
	}
	return slices.DeleteFunc(slices.Clone(copies), func(c storeCopy) bool {
		superseded := c.kind == "before" && c.of != newest
		return c.kind != "partial" && !superseded && now.Sub(c.at) <= copyAge
	})
}

// keepCopiesFew removes old copies of an open store until ctx ends; the caller waits with wait. While incomplete returns
// true, nothing is removed: rows were lost, and a copy may be all that has them.
func keepCopiesFew(ctx context.Context, store string, incomplete func() bool) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for delay := copyCheck; ; delay = copyPeriod {
			select {
			case <-ctx.Done():
				return
			case <-time.After(delay):
			}
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
	copies, err := copiesOf(store)
	errs := []error{err}
	for _, c := range expired(copies, now) {
		if err := removeAll(c.path); err != nil {
			errs = append(errs, err)
			continue
		}
		klog.InfoS("Old copy of the store removed", "path", c.path, "made", c.at.UTC().Format(time.DateOnly))
	}
	return errors.Join(errs...)
}

// storeFiles are the store and what lies beside it, its copies among them.
func storeFiles(store string) ([]string, error) {
	list := []string{store}
	for _, suffix := range []string{"-wal", "-shm", "-journal", ".reserve", ".open"} {
		list = append(list, store+suffix)
	}
	copies, err := copiesOf(store)
	for _, c := range copies {
		list = append(list, c.path)
	}
	return list, err
}

// removeStoreFiles removes them.
func removeStoreFiles(store string) error {
	list, err := storeFiles(store)
	err = errors.Join(err, removeAll(list...))
	if d, openErr := os.Open(filepath.Dir(store)); openErr == nil {
		err = errors.Join(err, d.Sync(), d.Close()) // a power cut does not bring them back
	}
	return err
}
