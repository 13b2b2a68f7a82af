// Package configreload applies changes of the agent's configuration file while the agent runs: on SIGHUP, and when the
// file changes. Its Keeper keeps copies of the configurations that work, and goes back to one if a device does not
// reach the cloud or the container runtime with a changed one.
package configreload

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// quietFor is how long the file must be unchanged before it is read: its writer may not be done.
const quietFor = 500 * time.Millisecond

// rescan is how often the file is checked where its folder cannot be watched.
const rescan = 30 * time.Second

// Options make a Reloader.
type Options struct {
	// File is the configuration file.
	File string
	// Watcher watches the file.
	Watcher *filewatch.Watcher
	// Started is what the agent was started with.
	Started    *v1alpha2.EdgeCore
	Conditions *health.Registry
	// Apply applies what can change while pods run, and ignores the rest. An error is shown as a condition, and the
	// file is tried again when it changes.
	Apply func(*v1alpha2.EdgeCore) error
	// Bad is why the file was not used at the start, and BadData what it contained: that is not applied. nil: it was
	// used, or could not be read.
	Bad     error
	BadData []byte
	// InForce is called with each configuration that is in force, and the content of its file. whole reports whether
	// none of it needs a restart. It may be nil.
	InForce func(config *v1alpha2.EdgeCore, data []byte, whole bool)
}

// reloader applies changes. It applies those that are possible while running, and reports the rest, which need a
// restart. An invalid file changes nothing. One goroutine calls its methods.
type reloader struct {
	Options
	// applied is the newest valid file.
	applied *v1alpha2.EdgeCore
	// warned are the warnings of the newest file, once it was read.
	warned []string
	read   bool
}

// Hangups delivers SIGHUP on a channel instead of ending the agent, until stop is called.
func Hangups() (told <-chan os.Signal, stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP)
	return ch, func() { signal.Stop(ch) }
}

// Start reloads until ctx ends or end is called; told delivers SIGHUP, see Hangups.
func Start(ctx context.Context, told <-chan os.Signal, opts Options) (end func()) {
	r := &reloader{Options: opts, applied: opts.Started}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx, told) })
	return func() {
		cancel()
		running.Wait()
	}
}

// run reloads until ctx ends.
func (r *reloader) run(ctx context.Context, told <-chan os.Signal) {
	folders := r.Watcher.Folders()
	defer folders.Close()
	quiet := time.NewTimer(quietFor) // also applies changes since the start
	defer quiet.Stop()
	last := stampOf(r.File)
	for {
		var unwatched <-chan time.Time
		if !r.watchFolders(folders) {
			unwatched = time.After(rescan)
		}
		select {
		case <-ctx.Done():
			return
		case <-folders.Changed():
		case <-unwatched:
		case <-told:
			klog.InfoS("SIGHUP: reading the configuration", "file", r.File)
			r.reload()
			continue
		case <-quiet.C:
			r.reload()
			continue
		}
		if now := stampOf(r.File); now != last {
			last = now
			quiet.Reset(quietFor)
		}
	}
}

// watchFolders watches the file's folder and, if the file is a link, its target's folder: files are replaced, not
// written in place. It reports whether it could.
func (r *reloader) watchFolders(folders *filewatch.Folders) (watched bool) {
	dirs := []string{filepath.Dir(r.File)}
	if real, err := filepath.EvalSymlinks(r.File); err == nil && filepath.Dir(real) != dirs[0] {
		dirs = append(dirs, filepath.Dir(real))
	}
	watched = true
	for _, dir := range dirs {
		if err := folders.Watch(dir); err != nil {
			watched = false
			klog.V(2).InfoS("Folder of the configuration not watched; it is read periodically", "dir", dir,
				"every", rescan, "err", err)
		}
	}
	return watched
}

// stamp reports whether a file may have changed.
type stamp struct {
	size  int64
	time  time.Time
	inode uint64
}

func stampOf(file string) stamp {
	info, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	s := stamp{size: info.Size(), time: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = uint64(st.Ino)
	}
	return s
}

// reload reads the file and applies what is possible.
func (r *reloader) reload() {
	err := r.applyFile()
	r.Conditions.SetError(health.ConfigurationBad, r.File, err)
}

func (r *reloader) applyFile() error {
	data, err := v1alpha2.Read(r.File)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", r.File, err)
	}
	if r.Bad != nil && r.BadData != nil && bytes.Equal(data, r.BadData) {
		return r.Bad
	}
	next, warnings, err := v1alpha2.Parse(data)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", r.File, err)
	}
	changes, err := v1alpha2.Changes(r.applied, next)
	if err != nil {
		return err
	}
	waiting, err := v1alpha2.Changes(r.Started, next)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		if err := r.Apply(next); err != nil {
			return err
		}
	}
	r.applied = next
	r.logChanges(changes, warnings)
	whole := r.setRestartNeeded(waiting)
	if r.InForce != nil {
		r.InForce(next, data, whole)
	}
	return nil
}

// logChanges logs what changed, and the effect.
func (r *reloader) logChanges(changes []v1alpha2.Change, warnings []string) {
	if len(changes) == 0 {
		klog.V(1).InfoS("Configuration is what it was", "file", r.File)
	}
	for _, c := range changes {
		when := "now"
		if !c.Live {
			when = "when edgecore is restarted"
		}
		klog.InfoS("Configuration changed", "key", c.Path, "from", c.From, "to", c.To, "takesEffect", when)
	}
	news := r.read && !slices.Equal(warnings, r.warned) // at startup they were logged
	r.warned, r.read = warnings, true
	if !news {
		return
	}
	for _, w := range warnings {
		klog.InfoS("Configuration", "file", r.File, "warning", w)
	}
}

// setRestartNeeded sets the condition that lists all changes since the start that need a restart. It reports whether
// there are none.
func (r *reloader) setRestartNeeded(changes []v1alpha2.Change) (none bool) {
	var waiting []string
	for _, c := range changes {
		if !c.Live {
			waiting = append(waiting, c.String())
		}
	}
	if len(waiting) == 0 {
		r.Conditions.Clear(health.RestartNeeded, "")
		return true
	}
	r.Conditions.Set(health.RestartNeeded, "", strings.Join(waiting, "; "))
	return false
}
