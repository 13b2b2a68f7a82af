package gc

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/readdir"
)

// Sources list the UIDs of pods that left something behind, by kind: pod folders, logs, cgroups.
type Sources map[string]func() ([]types.UID, error)

// Leftovers asks all sources, and returns what is left of pods that are not known, by UID with where it was found; what
// could not be asked is in the error, and the rest is returned all the same.
func Leftovers(sources Sources, known func(types.UID) bool) (map[types.UID][]string, error) {
	found := map[string][]types.UID{}
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(sources)) {
		uids, err := sources[what]()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
		found[what] = uids
	}
	return orphans(found, known), errors.Join(errs...)
}

// orphans sorts what was found by its pods, and leaves out those that are known. It is pure.
func orphans(found map[string][]types.UID, known func(types.UID) bool) map[types.UID][]string {
	out := map[types.UID][]string{}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		for _, uid := range found[what] {
			if !known(uid) && !slices.Contains(out[uid], what) {
				out[uid] = append(out[uid], what)
			}
		}
	}
	return out
}

// RemoveDeadLinks removes the links in links that lead to a log below logs which is not there any more, and returns how
// many those were. Links of others are not touched.
func RemoveDeadLinks(links, logs string) (int, error) {
	entries, err := readdir.Quiet(links)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	now, removed := time.Now(), 0
	var errs []error
	for _, e := range entries {
		link := filepath.Join(links, e.Name())
		if e.Type() != fs.ModeSymlink || !deadLink(link, logs, now) {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}

// linkMinAge is how old a link is before it can be dead while its pod's folder is there: the log of a container that is
// just being made does not exist yet.
const linkMinAge = time.Minute

// deadLink reports whether a link leads to a log below logs that is gone.
func deadLink(link, logs string, now time.Time) bool {
	target, err := os.Readlink(link)
	if err != nil || filepath.Clean(target) != target {
		return false
	}
	rest, below := strings.CutPrefix(target, logs+"/")
	if !below || there(target) {
		return false
	}
	folder, _, _ := strings.Cut(rest, "/")
	if !there(filepath.Join(logs, folder)) {
		return true
	}
	// While a log is rotated it is missing for a moment, and its older parts are not.
	info, err := os.Lstat(link)
	return err == nil && now.Sub(info.ModTime()) > linkMinAge && !rotating(target)
}

// rotating reports whether older parts of a log are there.
func rotating(log string) bool {
	entries, err := readdir.Quiet(filepath.Dir(log))
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), filepath.Base(log))
	})
}

// there reports whether there is anything at a path, as far as one can see.
func there(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
