package configfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// device is a configuration file and the folder of its store.
type device struct {
	t           *testing.T
	file, store string
}

func newDevice(t *testing.T) *device {
	dir := t.TempDir()
	return &device{t, filepath.Join(dir, "etc", "edgecore.yaml"), filepath.Join(dir, "lib", "edgecore.db")}
}

// text is a valid file of a node; more is added to it.
func (d *device) text(node, more string) string {
	return "apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\ndatabase: {dataSource: " + d.store +
		"}\nmodules: {edged: {hostnameOverride: " + node + "}}\n" + more
}

// ran is the agent that ran with the file as it is.
func (d *device) ran(connected bool) {
	d.t.Helper()
	f, err := Choose(d.file)
	if err == nil && f.Bad == nil {
		err = f.Copies.Keep(f.Data, Proof{Connected: connected})
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// times is how often the file was refused.
func times(c Copies) int {
	n, _ := c.Refusals()
	return n
}

func (d *device) copies() Copies { return CopiesOf(d.file, d.store) }

func (d *device) write(text string) { put(d.t, d.file, text) }

// wantCopy checks that the copy of a node's configuration is in force, and why.
func (d *device) wantCopy(node, why string) {
	d.t.Helper()
	f, err := Choose(d.file)
	if err != nil {
		d.t.Errorf("Choose = %v, want the copy of %s", err, node)
		return
	}
	if got := f.Config.Modules.Edged.HostnameOverride; got != node {
		d.t.Errorf("the configuration of %s is in force, want that of %s", got, node)
	}
	if f.Bad == nil || !strings.Contains(f.Bad.Error(), why) || !strings.Contains(f.Bad.Error(), d.file) {
		d.t.Errorf("the file is bad because of %v, want %s and %q", f.Bad, d.file, why)
	}
	if notice := f.Notice(); !strings.Contains(notice.Error(), f.From) || f.From == d.file {
		d.t.Errorf("notice %v, want one that names the copy %s", notice, f.From)
	}
	running, err := Running(d.file)
	if err != nil || running.Modules.Edged.HostnameOverride != node {
		d.t.Errorf("Running = %v, %v; want the copy of %s", running, err, node)
	}
}

// TestChoose: once the agent has run, it starts with the last good configuration whatever the file says.
func TestChoose(t *testing.T) {
	write := func(change func(good string) string) func(*device) {
		return func(d *device) { d.write(change(d.text("bad", ""))) }
	}
	add := func(more string) func(*device) { return write(func(good string) string { return good + more }) }
	for name, c := range map[string]struct {
		spoil func(d *device)
		why   string
	}{
		"a misspelt key":   {add("modulse: {}\n"), "no such key"},
		"an invalid value": {func(d *device) { d.write(d.text("bad_name", "")) }, "hostnameOverride"},
		"not YAML":         {add("a: [\n"), "not YAML"},
		"cut off":          {write(func(good string) string { return good[:170] + "\x00\x00" }), "not text"},
		"of another program": {write(func(good string) string {
			return strings.Replace(good, "EdgeCore", "CloudCore", 1)
		}), "kind"},
		"removed":    {func(d *device) { _ = os.Remove(d.file) }, "does not exist"},
		"empty":      {func(d *device) { d.write("") }, "is empty"},
		"too large":  {add(strings.Repeat("#", 1<<20)), "KiB"},
		"two stores": {add("database2: {dataSource: nowhere}\n"), "no such key"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t)
			c.spoil(d)
			if _, err := Choose(d.file); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("Choose without a copy = %v, want an error with %q", err, c.why)
			}
			d.write(d.text("good", ""))
			d.ran(true)
			c.spoil(d)
			d.wantCopy("good", c.why)
		})
	}
}

// TestChooseFile: a file that can be used is, whatever copies there are.
func TestChooseFile(t *testing.T) {
	d := newDevice(t)
	for _, node := range []string{"one", "two"} {
		d.write(d.text(node, ""))
		f, err := Choose(d.file)
		if err != nil || f.Bad != nil || f.Notice() != nil || f.From != d.file ||
			f.Config.Modules.Edged.HostnameOverride != node {
			t.Fatalf("Choose = %+v, %v; want the file of %s", f, err, node)
		}
		d.ran(false)
	}
}

// TestChooseOlderVersion: a version that does not know a key of the copy leaves it out; if it does not know a value, it
// takes an older copy.
func TestChooseOlderVersion(t *testing.T) {
	d := newDevice(t)
	d.write(d.text("one", ""))
	d.ran(true)
	newer := d.text("two", "ofTomorrow: {on: true}\n")
	if err := CopiesOf(d.file, d.store).Keep([]byte(newer), Proof{Connected: true}); err != nil {
		t.Fatal(err)
	}
	d.write(newer)
	d.wantCopy("two", "no such key")
	f, err := Choose(d.file)
	if err != nil || len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0], "ofTomorrow") {
		t.Errorf("Choose = %+v, %v; want a warning about ofTomorrow", f, err)
	}
	newer = d.text("t_w_o", "")
	if err := CopiesOf(d.file, d.store).Keep([]byte(newer), Proof{Connected: true}); err != nil {
		t.Fatal(err)
	}
	d.write(newer)
	d.wantCopy("two", "hostnameOverride")
}

// TestInstead: a valid file with which the agent could not start is replaced by another copy, never by itself.
func TestInstead(t *testing.T) {
	d := newDevice(t)
	d.write(d.text("one", ""))
	d.ran(false)
	why := errors.New("no memory is left for pods")
	f, err := Choose(d.file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Instead(why); err == nil || !strings.Contains(err.Error(), why.Error()) {
		t.Errorf("Instead of what is also the copy = %v, want %v", err, why)
	}
	d.write(d.text("two", ""))
	if f, err = Choose(d.file); err != nil {
		t.Fatal(err)
	}
	other, err := f.Instead(why)
	if err != nil || other.Config.Modules.Edged.HostnameOverride != "one" || !errors.Is(other.Bad, why) {
		t.Errorf("Instead = %+v, %v; want the copy of one, because %v", other, err, why)
	}
	if _, err := other.Instead(why); err == nil {
		t.Error("Instead of a copy = nil, want an error")
	}
}

// TestRefused: a file that was refused is not used until it changes or is touched.
func TestRefused(t *testing.T) {
	d := newDevice(t)
	d.write(d.text("one", ""))
	d.ran(true)
	refuse := func() {
		t.Helper()
		d.write(d.text("two", ""))
		f, err := Choose(d.file)
		if err == nil {
			err = f.Copies.Refuse(f.Data, "the cloud was not reached", false)
		}
		if err != nil {
			t.Fatal(err)
		}
		d.wantCopy("one", "the cloud was not reached")
	}
	refuse()
	touched := time.Now().Add(time.Minute)
	if err := os.Chtimes(d.file, touched, touched); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(){func() {}, func() {
		refuse()
		d.write(d.text("two", "# better\n"))
	}} {
		change()
		f, err := Choose(d.file)
		if err != nil || f.Bad != nil || f.Config.Modules.Edged.HostnameOverride != "two" {
			t.Errorf("Choose = %+v, %v; want the file of two", f, err)
		}
	}
	refuse()
	other := newDevice(t)
	other.store = d.store // of another file
	other.write(d.text("two", ""))
	if f, err := Choose(other.file); err != nil || f.Bad != nil {
		t.Errorf("Choose of another file = %+v, %v; want that file", f, err)
	}
	d.wantCopy("one", "the cloud was not reached")
	for _, path := range []string{d.copies().path(0), d.copies().path(1)} {
		_ = os.Remove(path) // the second there may not be
	}
	if f, err := Choose(d.file); err != nil || f.Bad != nil {
		t.Errorf("Choose of a refused file without a copy = %+v, %v; want the file", f, err)
	}
}

// TestForget: after join has changed the file and the certificates, nothing is refused, and nothing is on trial.
func TestForget(t *testing.T) {
	d := newDevice(t)
	d.write(d.text("one", ""))
	d.ran(true)
	d.write(d.text("two", ""))
	f, err := Choose(d.file)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Copies.Refuse(f.Data, "the cloud was not reached", false); err != nil {
			t.Fatal(err)
		}
	}
	if n := times(f.Copies); n != 2 {
		t.Errorf("refused %d times, want 2", n)
	}
	if err := f.Copies.TryAgain(); err != nil {
		t.Fatal(err)
	}
	if reason := f.Copies.Refused(f.Data); reason != "" || times(f.Copies) != 2 {
		t.Errorf("to be tried again: refused because of %q, %d times; want not, and 2", reason, times(f.Copies))
	}
	if err := f.Copies.Forget(); err != nil {
		t.Fatal(err)
	}
	newest, ok := f.Copies.Newest()
	if !ok || newest.Connected || times(f.Copies) != 0 {
		t.Errorf("newest copy %+v, %v, refused %d times; want one that is not connected, and 0", newest, ok,
			times(f.Copies))
	}
}

// TestInsteadOfWhatRan: if the agent has run with the file before, a copy of another cloud does not take its place.
func TestInsteadOfWhatRan(t *testing.T) {
	d := newDevice(t)
	for _, node := range []string{"older", "same", "same"} {
		d.write(d.text(node, "# "+node+"\n"))
		d.ran(true)
	}
	f, err := Choose(d.file)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := f.Instead(errors.New("no memory")); err == nil {
		t.Errorf("Instead = %s, want none", other.Config.Modules.Edged.HostnameOverride)
	}
	d.write(d.text("same", "# another comment\n"))
	d.ran(true)
	if f, err = Choose(d.file); err != nil {
		t.Fatal(err)
	}
	other, err := f.Instead(errors.New("no memory"))
	if err != nil || other.Config.Modules.Edged.HostnameOverride != "same" {
		t.Errorf("Instead = %+v, %v; want the copy with the same name", other, err)
	}
}

// TestKeep: nothing is written when nothing changes; older copies are kept, not more than three in all; only their
// owner reads them; what cannot be a copy is left out.
func TestKeep(t *testing.T) {
	d := newDevice(t)
	d.write("")
	c := CopiesOf(d.file, d.store)
	stamp := func() time.Time {
		t.Helper()
		info, err := os.Stat(c.path(0))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("mode %o, want 600", info.Mode().Perm())
		}
		return info.ModTime()
	}
	prove := func(text string, proof Proof) {
		t.Helper()
		if err := c.Keep([]byte(text), proof); err != nil {
			t.Fatal(err)
		}
		if newest, ok := c.Newest(); !ok || newest.Proof != proof {
			t.Errorf("newest copy %+v, %v; want %+v", newest, ok, proof)
		}
	}
	keep := func(text string, connected bool) {
		t.Helper()
		prove(text, Proof{Connected: connected})
	}
	keep("a", false)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(c.path(0), old, old); err != nil {
		t.Fatal(err)
	}
	keep("a", false)
	if !stamp().Equal(old) {
		t.Error("the same copy was written again")
	}
	keep("a", true)
	if newest, ok := c.Newest(); !ok || !newest.Connected || string(newest.Data) != "a" || len(c.List()) != 1 {
		t.Errorf("newest copy %+v, %v of %d; want a, connected, the only one", newest, ok, len(c.List()))
	}
	prove("a", Proof{Ran: true})
	prove("a", Proof{Ran: true, Connected: true})
	if text, err := os.ReadFile(c.path(0)); err != nil || !strings.HasSuffix(string(text), connectedMark+"\na") {
		t.Errorf("the copy is %q, %v; want the first line to end as older versions know it", text, err)
	}
	for _, text := range []string{"b\n# x", "c", "d"} {
		keep(text, false)
	}
	var texts []string
	for _, kept := range c.List() {
		texts = append(texts, string(kept.Data))
	}
	if got := strings.Join(texts, ","); got != "d,c,b\n# x" {
		t.Errorf("copies %q, want d, c and b", got)
	}
	if err := os.Remove(c.path(1)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(c.path(0), c.path(1)); err != nil {
		t.Fatal(err)
	}
	put(t, c.path(2), "no line before it")
	if list := c.List(); len(list) != 1 {
		t.Errorf("%d copies, want the link and the foreign file left out", len(list))
	}
	for _, path := range c.Paths() {
		if _, err := os.Lstat(path); err != nil && filepath.Base(path) != refusedName &&
			filepath.Base(path) != trialName && filepath.Ext(path) != ".new" {
			t.Errorf("path %s: %v, want a file that there is", path, err)
		}
	}
}

// TestMovedStore: a file that names a store in another folder is compared with the earlier copies, and the agent starts
// with one of them if that folder cannot be used. Once it has run with the new one, only that has copies.
func TestMovedStore(t *testing.T) {
	d := newDevice(t)
	d.write(d.text("good", ""))
	d.ran(true)
	old := d.copies()
	d.store = filepath.Join(t.TempDir(), "new", "edgecore.db")
	d.write(d.text("moved", ""))
	f, err := Choose(d.file)
	if err != nil || f.Bad != nil {
		t.Fatalf("Choose = %v, %v; want the file", f, err)
	}
	if newest, ok := f.Copies.Newest(); !ok || !newest.Connected {
		t.Errorf("newest copy of the moved store = %v, %v; want the one of before", newest, ok)
	}
	instead, err := f.Instead(errors.New("no such folder"))
	if err != nil || instead.Config.Modules.Edged.HostnameOverride != "good" {
		t.Fatalf("Instead = %v, %v; want the copy of before", instead, err)
	}
	d.ran(true)
	for _, name := range old.Paths() {
		if _, err := os.Lstat(name); err == nil && filepath.Dir(name) == filepath.Dir(old.path(0)) {
			t.Errorf("%s is there after the store has moved, want it removed", name)
		}
	}
	d.write("")
	d.wantCopy("moved", "is empty")
}

// TestCopiesOfAnother: a device whose store moves does not take the copies of another file for its own.
func TestCopiesOfAnother(t *testing.T) {
	d := newDevice(t)
	d.write(d.text("good", ""))
	d.ran(true)
	other := filepath.Join(filepath.Dir(d.file), "other.yaml")
	if err := os.Symlink(d.copies().path(0), linkOf(other)); err != nil {
		t.Fatal(err)
	}
	c := CopiesOf(other, filepath.Join(t.TempDir(), "edgecore.db"))
	if list := c.List(); len(list) != 0 {
		t.Errorf("copies of %s = %v, want none: they are of %s", other, list, d.file)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.Keep([]byte("x: 1\n"), Proof{Connected: true}); err != nil {
		t.Fatal(err)
	}
	if list := d.copies().List(); len(list) != 1 {
		t.Errorf("copies of %s = %v, want the one of before", d.file, list)
	}
}
