package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Repair, and what a crash in the midst of it leaves:
//
//	1. what can be read is copied into edgecore.db.rebuild       the damaged file is still there: all starts again
//	2. edgecore.db becomes edgecore.db.corrupt-<time>, then
//	   so do its -wal and -shm                                   only .rebuild is there, and it is whole: step 3
//	3. .rebuild becomes edgecore.db

// keepAside is how many files of a kind that were set aside are kept for anyone who wants to look at them.
const keepAside = 3

// besides are the ends of the names of what SQLite keeps beside a file; KubeEdge's files have a journal.
var besides = []string{"-wal", "-shm", "-journal"}

// maxDamage bounds the description of a damage, in bytes.
const maxDamage = 300

// Recovery says what Open did about a file that is damaged, or that a newer version wrote.
type Recovery struct {
	// Damage is what was found: for a newer version's file, why it cannot be used as it is.
	Damage string
	// Newer is the schema of a newer version's file, which was rolled back; 0 for a damaged file.
	Newer int
	// Before is the copy from before a migration that took a newer file's place; "" for none.
	Before string
	// SetAside is where the file is now; "" if there was none left.
	SetAside string
	// Saved is the number of rows that were taken over.
	Saved int
	// Lost is the number of rows that were not, as far as the damaged file can tell; -1 if it cannot.
	Lost int
	// Complete is false when there were rows that could not be read.
	Complete bool
}

func (r *Recovery) String() string {
	if r.Newer > 0 {
		from := "an empty store"
		if r.Before != "" {
			from = r.Before
		}
		return fmt.Sprintf("the store was written by a newer version of edgecore (schema %d, this one knows %d; %s); "+
			"it was set aside as %s, and %s with the %d rows of it that this version can read took its place",
			r.Newer, len(migrations), r.Damage, r.SetAside, from, r.Saved)
	}
	if r.SetAside == "" {
		return fmt.Sprintf("the store was lost (%s); a new one was made", r.Damage)
	}
	what, lost := "all that it held", ""
	if !r.Complete {
		what = "what could be read"
	}
	if r.Lost > 0 {
		lost = fmt.Sprintf("; rows that were lost: %d", r.Lost)
	}
	return fmt.Sprintf("the store was damaged (%s); it was set aside as %s, and %s (%d rows) was taken over%s",
		r.Damage, r.SetAside, what, r.Saved, lost)
}

// checkAndRepair makes sure that there is a sound file that this version can use. Where it is damaged, it is set aside
// and a new one made of what can be read; where a newer version wrote it, it may have to be rolled back. origin is the
// path of the store that this one is a copy of, or path.
func checkAndRepair(ctx context.Context, path, origin string, unclean bool, maxGap int64) (*Recovery, error) {
	there, err := exists(path)
	if err != nil {
		return nil, err
	}
	for _, unfinished := range []struct {
		name   string
		finish func(path string) (*Recovery, error)
	}{{path + ".rollback", finishRollback}, {path + ".rebuild", finishRepair}} {
		made, err := exists(unfinished.name)
		switch {
		case err != nil:
			return nil, err
		case made && !there:
			return unfinished.finish(path)
		case made:
			if err := removeStore(unfinished.name); err != nil {
				return nil, err
			}
		}
	}
	if !there {
		return makeNew(path, unclean)
	}
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		if err != nil || !unclean {
			return nil, err
		}
		// Once a store was in use its file is never empty; SQLite would take it for a new one.
		return &Recovery{Damage: "its file is empty", Lost: -1}, setStrayAside(path)
	}
	state, err := check(ctx, path, unclean)
	switch {
	case err != nil:
		return nil, err
	case state.newer != 0:
		return newRollback(path, origin, state.newer, state.why, maxGap).run(ctx)
	case state.damage != "":
		return repair(ctx, path, state.damage, maxGap)
	}
	return nil, nil
}

// makeNew makes an empty file, and tells if there should have been one.
func makeNew(path string, unclean bool) (*Recovery, error) {
	if err := errors.Join(setStrayAside(path), createFile(path)); err != nil || !unclean {
		return nil, err
	}
	return &Recovery{Damage: "its file was removed while it was in use", Lost: -1}, nil
}

// fileState is what check finds; zero if the file can be used.
type fileState struct {
	// damage says what is damaged.
	damage string
	// newer is the schema of a file that this version cannot use as it is, and why says the reason.
	newer int
	why   string
}

// check examines a file. After a clean end only its head is read. An error is one that says nothing about the file.
func check(ctx context.Context, path string, thorough bool) (fileState, error) {
	for _, suffix := range besides { // left by an unclean shutdown
		info, err := os.Stat(path + suffix)
		thorough = thorough || err == nil && info.Size() > 0
	}
	db := connect(path, asItIs, 1)
	defer db.Close()
	var n int
	version, readable, err := readMark(ctx, db)
	if err == nil && isNewer(version) {
		why, err := probe(ctx, path, readable)
		if err != nil || why != "" {
			damage, err := damageOf(err)
			if why == "" {
				return fileState{damage: damage}, err
			}
			return fileState{newer: version, why: why}, nil
		}
	}
	if err == nil {
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&n)
	}
	if err != nil || !thorough && (version == len(migrations) || isNewer(version)) {
		damage, err := damageOf(err)
		return fileState{damage: damage}, err
	}
	damage, err := integrity(ctx, db)
	return fileState{damage: damage}, err
}

// integrity checks all pages of a file, and returns what is damaged; "" for nothing.
func integrity(ctx context.Context, db *sql.DB) (damage string, err error) {
	rows, err := db.QueryContext(ctx, "PRAGMA integrity_check(10)")
	if err != nil {
		return damageOf(err)
	}
	defer rows.Close()
	var faults []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return damageOf(err)
		}
		if text != "ok" {
			faults = append(faults, text)
		}
	}
	if err := rows.Err(); err != nil {
		return damageOf(err)
	}
	return strings.Join(faults, "; "), nil
}

func damageOf(err error) (string, error) {
	if isDamage(err) {
		return err.Error(), nil
	}
	return "", err
}

// isDamage reports whether an error, met while a file was opened, is the file's own. Other errors (a full disk, a lock,
// an end of the context) do not justify replacing it.
func isDamage(err error) bool {
	err = classify(err)
	if errors.Is(err, ErrCorrupt) {
		return true
	}
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return false
	}
	// A statement of ours that makes no sense to SQLite speaks of a schema that is not ours; a file that is not to
	// be written, on a disk that took the lock's mark, speaks of a damaged head.
	return e.Code == sqlite3.ErrError || e.Code == sqlite3.ErrReadonly
}

// repair sets a file aside and puts in its place one made of what can be read of it.
func repair(ctx context.Context, path, damage string, maxGap int64) (*Recovery, error) {
	r := &Recovery{Damage: shorten(damage)}
	fresh := path + ".rebuild"
	if err := errors.Join(removeStore(fresh), createFile(fresh)); err != nil {
		return nil, err
	}
	// SQLite reads nothing at all of a file that is shorter than its head tells. If this fails, so be it.
	_ = restoreLength(path)
	if err := salvage(ctx, path, fresh, maxGap, r); err != nil {
		return nil, errors.Join(fmt.Errorf("take over what can be read of a damaged file (%s): %w", r.Damage, err),
			removeStore(fresh))
	}
	r.SetAside = path + ".corrupt-" + timeName()
	for _, suffix := range append([]string{""}, besides...) {
		if err := os.Rename(path+suffix, r.SetAside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("set damaged file aside: %w", err)
		}
	}
	if err := renameDurably(fresh, path); err != nil {
		return nil, err
	}
	return r, dropOld(path, ".corrupt-")
}

// finishRepair goes on where a crash interrupted repair.
func finishRepair(path string) (*Recovery, error) {
	if err := errors.Join(setStrayAside(path), renameDurably(path+".rebuild", path)); err != nil {
		return nil, err
	}
	aside, err := asideFiles(path, ".corrupt-")
	if err != nil || len(aside) == 0 {
		return nil, err
	}
	return &Recovery{Damage: "its repair was interrupted", SetAside: aside[len(aside)-1], Lost: -1}, nil
}

// setStrayAside keeps a log away from a file that it does not belong to.
func setStrayAside(path string) error {
	aside := path + ".corrupt-" + timeName()
	for _, suffix := range besides {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// asideFiles are the files that were set aside under names of a kind (".corrupt-", ".newer-"), oldest first.
func asideFiles(path, kind string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+kind)
		if ok && !slices.ContainsFunc(besides, func(suffix string) bool { return strings.HasSuffix(rest, suffix) }) {
			names = append(names, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	smallsort.SortFunc(names, func(a, b string) int {
		return cmp.Compare(a[strings.LastIndexByte(a, '-')+1:], b[strings.LastIndexByte(b, '-')+1:])
	})
	return names, nil
}

// dropOld removes files of a kind that were set aside, above the number that is kept.
func dropOld(path, kind string) error {
	aside, err := asideFiles(path, kind)
	if err != nil {
		return err
	}
	for len(aside) > keepAside {
		if err := removeStore(aside[0]); err != nil {
			return err
		}
		aside = aside[1:]
	}
	return nil
}

// removeStore removes a file and what SQLite puts beside it.
func removeStore(path string) error {
	err := removeIfThere(path)
	for _, suffix := range besides {
		err = errors.Join(err, removeIfThere(path+suffix))
	}
	return err
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// timeName is for names that sort by time.
func timeName() string { return time.Now().UTC().Format("20060102T150405.000Z") }

func shorten(text string) string {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, ErrCorrupt.Error()+": ", "")), " ")
	if len(text) > maxDamage {
		text = text[:maxDamage] + " ..."
	}
	return text
}
