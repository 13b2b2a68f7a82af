package volume

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// file is one file of a volume that the agent fills.
type file struct {
	path string // relative to the volume
	data []byte
	mode uint32
	// uid and gid own it.
	uid, gid int
	// renewAt is when the content is to be asked for again at the latest; zero is never.
	renewAt time.Time
}

// source is what a configMap or secret volume, or such a part of a projected one, asks for.
type source struct {
	name     string
	items    []v1.KeyToPath
	defaults defaults
	optional bool
}

// maxContent is how many bytes the agent writes into the volumes of one pod. A pod may project the same key or
// annotation thousands of times, and most of these files lie in memory.
const maxContent = 64 << 20

// room is what is left of maxContent for a pod.
type room struct{ left int }

// reserve counts the size of a file, or returns an error if there is no room for it.
func (r *room) reserve(f *file) error {
	if r.left -= len(f.path) + len(f.data); r.left < 0 {
		return fmt.Errorf("the files of this pod's configMap, secret, downwardAPI and projected volumes have more "+
			"than %d MiB in all; "+
			"list fewer items, or use a volume of another type for large files", maxContent>>20)
	}
	return nil
}

// defaults are the mode and the owner of the files of a volume that say nothing themselves.
type defaults struct {
	mode *int32
	user *int64
	// room is shared by all volumes of a pod.
	room *room
}

// file makes a file with its own mode and owner, where it has them.
func (d defaults) file(path string, data []byte, mode *int32, user *int64) (file, error) {
	f := file{path: path, data: data, mode: modeOf(mode, d.mode), uid: int(*cmp.Or(user, d.user, new(int64(0))))}
	return f, d.room.reserve(&f)
}

const defaultMode = 0o644

func modeOf(specific, general *int32) uint32 {
	return uint32(*cmp.Or(specific, general, new(int32(defaultMode)))) & 0o777
}

func isTrue(b *bool) bool { return b != nil && *b }

// pick makes files of all keys, or of those that the source's items name. missing words the error for a
// key that is not there.
func pick(data map[string][]byte, src source, missing string) ([]file, error) {
	var files []file
	if len(src.items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if err := checkPath(key); err != nil {
				return nil, err
			}
			f, err := src.defaults.file(key, data[key], nil, nil)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		return files, nil
	}
	for _, item := range src.items {
		content, ok := data[item.Key]
		if !ok {
			if src.optional {
				continue
			}
			return nil, fmt.Errorf("%s: %s", missing, item.Key)
		}
		if err := checkPath(item.Path); err != nil {
			return nil, err
		}
		f, err := src.defaults.file(path.Clean(item.Path), content, item.Mode, item.User)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// checkPath refuses a path that could leave the volume or meet the files by which it is updated.
func checkPath(p string) error {
	switch {
	case p == "" || path.Clean(p) == ".":
		return errors.New("invalid path: must name a file")
	case strings.ContainsRune(p, 0):
		return fmt.Errorf("invalid path %q: must not contain a NUL byte", p)
	case path.IsAbs(p):
		return fmt.Errorf("invalid path %q: must be relative", p)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return fmt.Errorf("invalid path %q: must not contain '..'", p)
	case strings.HasPrefix(path.Clean(p), ".."):
		return fmt.Errorf("invalid path %q: must not start with '..'", p)
	}
	return nil
}

// deduplicate puts files in order. Of several with one path the last counts; one that lies where another has a
// folder is an error.
func deduplicate(files []file) ([]file, error) {
	byPath := make(map[string]file, len(files))
	for _, f := range files {
		byPath[f.path] = f
	}
	for name := range byPath {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := byPath[dir]; ok {
				return nil, fmt.Errorf("path %q conflicts with path %q: one is a file where the other needs a folder",
					dir, name)
			}
		}
	}
	out := make([]file, 0, len(byPath))
	for _, name := range slices.Sorted(maps.Keys(byPath)) {
		out = append(out, byPath[name])
	}
	return out, nil
}
