// Package source reads desired pods from the folder of static manifests.
//
// It promises that a file that cannot be read or does not hold valid pods changes nothing: the pods that it held before
// keep running, the fault is reported once, and the file is read again when it changes. The pods of a file that is gone
// are removed. Hidden files, folders and editors' left-overs ("x~", ".swp") are passed over.
package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/readdir"
)

const (
	// debounce is how long a folder has to be quiet after a change, so that a file that is being
	// written is not read in its middle.
	debounce = 2 * time.Millisecond
	// coarse is above the granularity of any file system's times but FAT's.
	coarse = 100 * time.Millisecond
	// defaultRescan is the safety net where no file events come (network file systems).
	defaultRescan = 20 * time.Second
)

// StaticOptions configure a Static.
type StaticOptions struct {
	// Dir is the folder (or the one file) of manifests. It may be missing, and may come later.
	Dir string
	// Watcher tells of changes of the folder.
	Watcher *filewatch.Watcher
	// NodeName is put into the pods.
	NodeName string
	// Rescan is the period of the safety net; zero is 20 s. It costs a readdir and a stat a file.
	Rescan time.Duration
	// Known, which may be nil, is given the pods of a file before anybody else has them, and may give them the UIDs
	// that they had under another agent; see package adopt.
	Known func([]*v1.Pod)
	// Pods is called with all pods of the folder whenever they changed, and once at the start.
	// The pods must not be changed. It is called from Run's goroutine only.
	Pods func([]*v1.Pod)
	// Fault is called when a file became bad (err set), or good again or gone (err nil); the
	// file is "" for the folder as a whole.
	Fault func(file string, err error)
	// Warning is called for each oddity of a file that is good all the same.
	Warning func(file, text string)
}

// Static watches a folder of manifests.
type Static struct {
	opts  StaticOptions
	files map[string]*manifest
	bad   map[string]string // file -> the fault last reported
	// sent is true once Pods was called.
	sent bool
}

// manifest is what is known of one file.
type manifest struct {
	stamp stamp
	pods  []*v1.Pod // as last read without a fault
	err   error     // of the newest read
}

// stamp reports whether a file may have changed. The inode is in it because an atomic rename may keep size and time.
type stamp struct {
	size  int64
	mtime time.Time
	inode uint64
}

// NewStatic makes a source; Run starts it.
func NewStatic(opts StaticOptions) *Static {
	if opts.Rescan <= 0 {
		opts.Rescan = defaultRescan
	}
	return &Static{opts: opts, files: map[string]*manifest{}, bad: map[string]string{}}
}

// Run reads the folder, then again whenever it changes, until ctx ends.
func (s *Static) Run(ctx context.Context) error {
	if s.opts.Dir == "" {
		s.opts.Pods(nil)
		<-ctx.Done()
		return nil
	}
	folders := s.opts.Watcher.Folders()
	defer folders.Close()
	rescan := time.NewTicker(s.opts.Rescan)
	defer rescan.Stop()
	quiet := time.NewTimer(0) // the first look is at once
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-folders.Changed():
			quiet.Reset(debounce)
			continue
		case <-quiet.C:
		case <-rescan.C:
		}
		if err := folders.Watch(s.watchDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.V(2).InfoS("Manifest folder cannot be watched; it is read every rescan", "dir", s.opts.Dir, "err", err)
		}
		s.Scan()
	}
}

// watchDir is what to watch: the folder, or the folder of the one file. While it does not exist,
// the rescan notices its coming.
func (s *Static) watchDir() string {
	if info, err := os.Stat(s.opts.Dir); err == nil && !info.IsDir() {
		return filepath.Dir(s.opts.Dir)
	}
	return s.opts.Dir
}

// Scan reads what changed and tells it. Run calls it; a caller that does not want a goroutine may.
func (s *Static) Scan() {
	names, err := s.list()
	if err != nil {
		s.fault("", err)
		return // an unreadable folder changes nothing
	}
	s.fault("", nil)
	changed := !s.sent
	for name := range maps.Clone(s.files) {
		if !slices.Contains(names, name) {
			changed = changed || len(s.files[name].pods) > 0
			delete(s.files, name)
			s.fault(name, nil)
		}
	}
	for _, name := range names {
		changed = s.read(name) || changed
	}
	if changed {
		s.sent = true
		s.opts.Pods(s.pods())
	}
}

// list returns the manifest files, sorted.
func (s *Static) list() ([]string, error) {
	info, err := os.Stat(s.opts.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []string{s.opts.Dir}, nil
	}
	entries, err := readdir.Quiet(s.opts.Dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, ".") && !strings.HasSuffix(name, "~") {
			names = append(names, filepath.Join(s.opts.Dir, name))
		}
	}
	return names, nil
}

// read looks at a file that may have changed, and returns whether its pods did.
func (s *Static) read(name string) bool {
	old := s.files[name]
	now, data, err := load(name, old)
	if errors.Is(err, errSame) || errors.Is(err, errNotFile) {
		return false
	}
	if old == nil {
		old = &manifest{}
		s.files[name] = old
	}
	old.stamp = now
	var pods []*v1.Pod
	var warnings []string
	if err == nil {
		pods, warnings, err = Decode(data, s.opts.NodeName)
	}
	if s.opts.Known != nil {
		s.opts.Known(pods)
	}
	old.err = err
	s.fault(name, err)
	// A file that is being written may lack the end of a later document: no pod ends for that.
	if _, trailing := errors.AsType[*TrailingError](err); err != nil && !(trailing && named(pods, old.pods)) {
		return false
	}
	for _, text := range warnings {
		s.opts.Warning(name, text)
	}
	same := slices.EqualFunc(old.pods, pods, func(a, b *v1.Pod) bool { return a.UID == b.UID })
	old.pods = pods
	return !same
}

// named reports whether each of some pods has another one of its name among pods.
func named(pods, some []*v1.Pod) bool {
	for _, have := range some {
		if !slices.ContainsFunc(pods, func(p *v1.Pod) bool {
			return p.Namespace == have.Namespace && p.Name == have.Name
		}) {
			return false
		}
	}
	return true
}

var (
	errSame    = errors.New("unchanged")
	errNotFile = errors.New("not a regular file")
)

// load returns the content of a file whose stamp differs from the known one.
func load(name string, known *manifest) (stamp, []byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return stamp{}, nil, err
	}
	if !info.Mode().IsRegular() {
		return stamp{}, nil, errNotFile
	}
	now := stamp{size: info.Size(), mtime: info.ModTime(), inode: inode(info)}
	if known != nil && known.stamp == now {
		return now, nil, errSame
	}
	if info.Size() > maxManifest {
		return now, nil, fmt.Errorf("%d bytes: a manifest may have %d at the most", info.Size(), maxManifest)
	}
	if time.Since(now.mtime).Abs() < coarse {
		now = stamp{} // it may change again within the clock's tick: do not trust the stamp next time
	}
	data, err := os.ReadFile(name)
	return now, data, err
}

// pods returns the pods of all files. A pod that two files name counts once: the first in the
// order of names has it, and the other is reported.
func (s *Static) pods() []*v1.Pod {
	var all []*v1.Pod
	owner := map[string]string{}
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		m := s.files[file]
		err := m.err
		for _, pod := range m.pods {
			name, uid := "pod "+pod.Namespace+"/"+pod.Name, "UID "+string(pod.UID)
			if first, what := owner[name], name; first != "" || owner[uid] != "" {
				if first == "" {
					first, what = owner[uid], uid
				}
				if err == nil {
					err = fmt.Errorf("%s: %s has it already; rename one of them", what, filepath.Base(first))
				}
				continue
			}
			owner[name], owner[uid] = file, file
			all = append(all, pod)
		}
		s.fault(file, err)
	}
	return all
}

// fault reports a change of what is wrong with a file.
func (s *Static) fault(file string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if s.bad[file] == text {
		return
	}
	if err == nil {
		delete(s.bad, file)
	} else {
		s.bad[file] = text
	}
	s.opts.Fault(file, err)
}
