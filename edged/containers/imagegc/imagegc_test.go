package imagegc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// disk is a runtime with a disk of 1000 bytes. Images share nothing unless shared says that one frees less than its
// size.
type disk struct {
	images  []Image
	used    []string
	other   uint64
	shared  map[string]uint64
	fail    map[string]error
	removed []string
	// short are the images that the runtime finds by short names; asked are those that it was asked for.
	short map[string]string
	asked []string
	// during is called at each removal.
	during func(id string)
}

func (d *disk) Images(context.Context) ([]Image, error)   { return slices.Clone(d.images), nil }
func (d *disk) InUse(context.Context) ([]string, error)   { return d.used, nil }
func (d *disk) Sandbox(context.Context) ([]string, error) { return []string{"pause:1"}, nil }

func (d *disk) Resolve(_ context.Context, name string) (string, error) {
	d.asked = append(d.asked, name)
	return d.short[name], nil
}

func (d *disk) Usage(context.Context) (Usage, error) {
	u := Usage{Mountpoint: "/images", Capacity: 1000, Available: 1000 - d.other}
	for _, i := range d.images {
		u.Available -= i.Size - d.shared[i.ID]
	}
	return u, nil
}

func (d *disk) Remove(_ context.Context, id string) error {
	if err := d.fail[id]; err != nil {
		return err
	}
	if d.during != nil {
		d.during(id)
	}
	d.images = slices.DeleteFunc(d.images, func(i Image) bool { return i.ID == id })
	d.removed = append(d.removed, id)
	return nil
}

func (d *disk) add(id string, size uint64) {
	d.images = append(d.images, Image{ID: id, Names: []string{"example.com/" + id + ":1"}, Size: size})
}

func name(id string) string { return "example.com/" + id + ":1" }

var policy = Policy{HighPercent: 85, LowPercent: 50, MinAge: 2 * time.Minute}

// TestShortNames: only the runtime knows which image a short name stands for. The image stays while a pod names it so,
// and is asked for once a collection.
func TestShortNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{other: 300, short: map[string]string{"b:1": "b", "c:latest": "c"}}
		for _, id := range []string{"a", "b", "c"} {
			d.images = append(d.images, Image{ID: id, Names: []string{"localhost/" + id + ":1"}, Size: 200})
		}
		c := New(Options{
			State:  d,
			Policy: policy,
			Wanted: func() ([]string, bool) { return []string{"b:1", "c", "gone", "example.com/x:1"}, true },
		})
		if _, err := c.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		d.asked = nil
		if _, err := c.Free(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a"}, d.removed); diff != "" {
			t.Errorf("removed (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff([]string{"b:1", "c:latest", "gone:latest"}, d.asked); diff != "" {
			t.Errorf("asked for (-want +got)\n%s", diff)
		}
	})
}

// TestCollect: a collection takes what was used least recently first, and stops when there is room.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		for _, id := range []string{"a", "b", "c", "d"} {
			d.add(id, 200)
		}
		d.add("pause", 10)
		var wanted []string
		known := true
		c := New(Options{
			State:    d,
			Policy:   policy,
			Wanted:   func() ([]string, bool) { return wanted, known },
			KeepFile: filepath.Join(t.TempDir(), "keep"),
		})
		collect := func() Result {
			t.Helper()
			res, err := c.Collect(t.Context())
			if err != nil {
				t.Error(err)
			}
			return res
		}
		for _, use := range []string{"c", "a", "d"} { // b is never used
			wanted = []string{name(use)}
			collect()
			time.Sleep(time.Minute)
		}
		wanted = []string{name("d")}
		if len(d.removed) > 0 {
			t.Errorf("%v removed below the threshold, want none", d.removed)
		}
		d.other = 100 // 910 in use; wanted are 500
		res := collect()
		if diff := cmp.Diff([]string{"b", "c", "a"}, d.removed); diff != "" || res.Freed != 600 {
			t.Errorf("freed %d, want 600; removed mismatch (-want +got):\n%s", res.Freed, diff)
		}
		d.removed = nil
		d.add("e", 300)
		d.add("f", 300) // 910 again
		_, err := c.Collect(t.Context())
		if short, ok := errors.AsType[*NotEnoughError](err); !ok || short.Want != 410 || len(d.removed) > 0 {
			t.Errorf("Collect: %v, removed %v; want 410 bytes missing, and young images to stay", err, d.removed)
		}
		time.Sleep(2 * time.Minute)
		known = false
		if _, err := c.Collect(t.Context()); !errors.Is(err, ErrUnknown) || len(d.removed) > 0 {
			t.Errorf("Collect before the pods are known: %v, removed %v; want %v, none", err, d.removed, ErrUnknown)
		}
		known = true
		_, err = c.Collect(t.Context())
		if diff := cmp.Diff([]string{"e", "f"}, d.removed); diff != "" || err != nil {
			t.Errorf("Collect: %v; removed mismatch (-want +got):\n%s", err, diff)
		}
		d.other = 700 // nothing is left to remove
		if _, err = c.Collect(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "only found 0 bytes eligible to free") {
			t.Errorf("Collect: %v, want only found 0 bytes eligible to free", err)
		}
	})
}

// TestCollectMeasures: images that share their layers free less than their sizes say, and one that cannot be removed is
// passed over.
func TestCollectMeasures(t *testing.T) {
	d := &disk{
		other: 480, shared: map[string]uint64{"a": 190, "b": 190},
		fail: map[string]error{"b": errors.New("it is busy")},
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		d.add(id, 200)
	}
	p := policy
	p.MinAge, p.LowPercent = 0, 80
	c := New(Options{State: d, Policy: p, Wanted: func() ([]string, bool) { return nil, true }})
	res, err := c.Collect(t.Context())
	if diff := cmp.Diff([]string{"a", "c"}, d.removed); diff != "" || res.Freed != 210 {
		t.Errorf("freed %d, want 210; removed mismatch (-want +got):\n%s", res.Freed, diff)
	}
	if err == nil || !strings.Contains(err.Error(), "example.com/b:1: it is busy") {
		t.Errorf("Collect: %v, want example.com/b:1: it is busy", err)
	}
}

// TestNeedAppears: a pod that comes while images are being removed keeps its own.
func TestNeedAppears(t *testing.T) {
	d := &disk{}
	for _, id := range []string{"a", "b", "c"} {
		d.add(id, 300)
	}
	var wanted []string
	d.during = func(string) { wanted = []string{name("b")} }
	keep := filepath.Join(t.TempDir(), "keep")
	c := New(Options{
		State:    d,
		Policy:   Policy{HighPercent: 100},
		Wanted:   func() ([]string, bool) { return wanted, true },
		KeepFile: keep,
	})
	if _, err := c.Free(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "c"}, d.removed); diff != "" {
		t.Errorf("removed mismatch (-want +got):\n%s", diff)
	}
	d.add("e", 1)
	d.add("f", 1)
	if err := os.WriteFile(keep, []byte("[\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Free(t.Context(), nil); err == nil || len(d.removed) != 2 {
		t.Errorf("Free with a keep list that cannot be read: %v, removed %v; want an error, and 2 as before",
			err, d.removed)
	}
	if err := os.WriteFile(keep, []byte("example.com/[ex]:*\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wanted, d.during = nil, nil
	enough := 0
	if _, err := c.Free(t.Context(), func(context.Context) bool { enough++; return enough > 1 }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "c", "b"}, d.removed); diff != "" {
		t.Errorf("removed until there is enough, without what is kept, mismatch (-want +got):\n%s", diff)
	}
}

// TestUsesBetweenLooks: what a pod that came and went used counts.
func TestUsesBetweenLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		for _, id := range []string{"a", "b", "c"} {
			d.add(id, 1)
		}
		c := New(Options{State: d, Policy: Policy{HighPercent: 100}, Wanted: func() ([]string, bool) {
			return nil, true
		}})
		for _, id := range []string{"c", "a", "b"} {
			c.Used(name(id), "never-here:1")
			time.Sleep(time.Second)
		}
		if _, err := c.Free(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"c", "a", "b"}, d.removed); diff != "" {
			t.Errorf("removed mismatch (-want +got):\n%s", diff)
		}
		if len(c.used) > 0 {
			t.Errorf("%d uses are kept after they were counted, want none", len(c.used))
		}
	})
}

func TestMaximumAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		d.add("a", 1)
		d.add("b", 1)
		p := policy
		p.MaxAge = time.Hour
		c := New(Options{State: d, Policy: p, Wanted: func() ([]string, bool) { return []string{name("b")}, true }})
		for range 13 {
			if _, err := c.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
		}
		if len(d.removed) > 0 {
			t.Errorf("removed %v after an hour, want none", d.removed)
		}
		if _, err := c.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a"}, d.removed); diff != "" {
			t.Errorf("removed mismatch (-want +got):\n%s", diff)
		}
	})
}

func TestSandboxImage(t *testing.T) {
	for config, want := range map[string]string{
		`{"containerd":{},"sandboxImage":"pause:3.6"}`: "pause:3.6", `{}`: "", `nonsense`: "", ``: "",
	} {
		if got := sandboxImage(config); got != want {
			t.Errorf("sandboxImage(%s) = %q, want %q", config, got, want)
		}
	}
}
