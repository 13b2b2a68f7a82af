package repair

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// disk is a containerd's disk with one image of two layers, of which the upper one is gzipped.
type disk struct {
	events.Interface
	t *testing.T
	// blobs are there by digest; those of which the bytes are gone are nil.
	blobs map[string][]byte
	// fresh are the blobs as the registry has them; a pull of a layer that is unpacked does not bring it.
	fresh   map[string][]byte
	id      string
	target  string
	layers  []string // digests, the lowest first
	at      string
	dirs    []string // the uppermost first; none: not unpacked
	noDirs  error    // what is said instead
	look    func()   // is called before
	plain   bool     // the runtime is not containerd
	away    bool     // the registry
	foreign bool     // an archive has the layers in another form
	kept    bool     // the image is there
	byID    string   // the target of its ID, if it is another one than that of its name
	users   []string // other containers that are made of it
	names   []string // the runtime's images that are none
	held    map[string][]cri.Ref
	flow    func() // is called during a pull
	calls   []string
	words   []string
	health  health.Registry
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t: t, blobs: map[string][]byte{}, fresh: map[string][]byte{}, kept: true}
	d.at = filepath.Join(t.TempDir(), "io.containerd.snapshotter.v1.overlayfs")
	archives := [][]byte{aLayer(t), aLayer(t)[512:]} // the second one lacks "./"
	var diffs []string
	for i, archive := range archives {
		blob := archive
		if i == 1 {
			var buf bytes.Buffer
			w, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(archive); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			blob = buf.Bytes()
		}
		dir := filepath.Join(d.at, "snapshots", fmt.Sprint(i+1), "fs")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		mendIn(t, dir, archive, damage{all: true})
		d.layers, diffs, d.dirs = append(d.layers, d.add(blob)), append(diffs, digestOf(archive)),
			append([]string{dir}, d.dirs...)
	}
	d.id = d.add(encode(t, map[string]any{"rootfs": map[string]any{"diff_ids": diffs}}))
	one := d.add(encode(t, map[string]any{
		"config": map[string]string{
			"digest": d.id,
		}, "layers": []map[string]string{{"digest": d.layers[0]}, {"digest": d.layers[1]}},
	}))
	other := digestOf([]byte("of another platform"))
	d.target = d.add(encode(t, map[string]any{"manifests": []map[string]string{{"digest": other}, {"digest": one}}}))
	for digest, data := range d.blobs {
		d.fresh[digest] = data
	}
	return d
}

func encode(t *testing.T, doc any) []byte {
	t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (d *disk) add(data []byte) string {
	d.blobs[digestOf(data)] = data
	return digestOf(data)
}

// The Store.

func (d *disk) ImageTarget(_ context.Context, name string) (string, error) {
	if !d.kept {
		return "", status.Error(codes.NotFound, "no image")
	}
	if name == d.id && d.byID != "" {
		return d.byID, nil
	}
	return d.target, nil
}

func (d *disk) ReadBlob(_ context.Context, digest string) (io.ReadCloser, error) {
	d.calls = append(d.calls, "read")
	data, listed := d.blobs[digest]
	if !listed || data == nil {
		return nil, status.Error(codes.NotFound, "blob not found")
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (d *disk) Blobs(context.Context) (list []cri.Blob, err error) {
	if d.plain {
		return nil, status.Error(codes.Unimplemented, "unknown service")
	}
	for digest := range d.blobs {
		b := cri.Blob{Digest: digest}
		if digest == d.target {
			b.Refs = []cri.Ref{{Kind: cri.KindContent, ID: d.id}}
		}
		list = append(list, b)
	}
	return list, nil
}

func (d *disk) DeleteBlob(_ context.Context, digest string) error {
	d.calls = append(d.calls, "delete blob")
	delete(d.blobs, digest)
	return nil
}

func (d *disk) CollectGarbage(context.Context, string) error {
	d.calls = append(d.calls, "garbage")
	return nil
}

func (d *disk) Hold(_ context.Context, lease string, _ time.Duration, refs []cri.Ref) error {
	if d.held == nil {
		d.held = map[string][]cri.Ref{}
	}
	d.held[lease] = append(d.held[lease], refs...)
	return nil
}

func (d *disk) Release(_ context.Context, lease string) error {
	delete(d.held, lease)
	return nil
}

func (d *disk) DeleteImage(_ context.Context, name string) error {
	d.names = slices.DeleteFunc(d.names, func(one string) bool { return one == name })
	return nil
}

func (d *disk) LayerDirs(context.Context, string, string, string) ([]string, error) {
	if d.look != nil {
		d.look()
	}
	if d.noDirs != nil {
		return nil, d.noDirs
	}
	if len(d.dirs) == 0 {
		return nil, status.Error(codes.NotFound, "no such snapshot")
	}
	return d.dirs, nil
}

// The Runtime.

func (d *disk) RemoveContainer(_ context.Context, id string) error {
	d.calls = append(d.calls, "remove "+id)
	return nil
}

func (d *disk) RemoveImage(_ context.Context, id string) error {
	d.calls, d.kept = append(d.calls, "remove image"), false
	return nil
}

func (d *disk) ContainersOf(context.Context, string) ([]string, error) {
	return append([]string{"dead1"}, d.users...), nil
}

func (d *disk) LayersAt(context.Context) (string, error) { return d.at, nil }

func (d *disk) Images(context.Context) ([]Image, error) {
	if !d.kept {
		return nil, nil
	}
	return []Image{{ID: d.id, Names: []string{"registry.example/app:1"}, Sandbox: true}}, nil
}

// The Recorder.

func (d *disk) ContainerEventf(_ *v1.Pod, _ *v1.Container, _, reason, format string, args ...any) {
	d.words = append(d.words, reason+": "+fmt.Sprintf(format, args...))
}

func (d *disk) NodeEventf(kind, reason, format string, args ...any) {
	d.ContainerEventf(nil, nil, kind, reason, format, args...)
}

// pull does what containerd does: it fetches the documents of an image and the layers that are not unpacked, and the
// blob of any digest, for which it makes an image that is none.
func (d *disk) pull(_ context.Context, name string, _ []v1.Secret) error {
	_, digest, single := strings.Cut(name, "@")
	if single = single && digest != d.target; single {
		d.calls = append(d.calls, "pull @")
	} else {
		d.calls = append(d.calls, "pull")
	}
	if d.flow != nil {
		d.flow()
	}
	if d.away {
		return errors.New("no way to the registry")
	}
	for one, data := range d.fresh {
		if _, listed := d.blobs[one]; !listed && (one == digest ||
			!single && (len(d.dirs) == 0 || !slices.Contains(d.layers, one))) {
			d.blobs[one] = data
		}
	}
	if single {
		d.names = append(d.names, name)
		return errors.New("not an image")
	}
	d.kept = true
	return nil
}

func (d *disk) load(_ context.Context, file, _ string) error {
	d.calls, d.kept = append(d.calls, "load "+filepath.Base(file)), true
	for digest, data := range d.fresh {
		if _, listed := d.blobs[digest]; !listed && !d.foreign {
			d.blobs[digest] = data
		}
	}
	return nil
}

func (d *disk) repairer() *Repairer {
	d.t.Helper()
	record, err := OpenRecord(filepath.Join(d.at, "root"), "1")
	if err != nil {
		d.t.Fatal(err)
	}
	return New(Options{
		Store:    d,
		Runtime:  d,
		Pull:     d.pull,
		Load:     d.load,
		Archives: filepath.Join(d.at, "archives"),
		Recorder: d,
		Health:   &d.health,
		Record:   record,
	})
}

// fails is a failure that a damaged image explains.
func (d *disk) fails(message string) Suspect {
	return Suspect{
		Failure:   Failure{Stage: Start, Message: message},
		Image:     "registry.example/app:1",
		ID:        d.id,
		Dead:      []string{"dead1"},
		Pod:       &v1.Pod{},
		Container: &v1.Container{Name: "c"},
		Since:     time.Now(),
	}
}

const (
	strong = "exec format error"
	weak   = "no such file or directory"
)

// made are the calls but those that only read.
func (d *disk) made() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(d.calls), func(c string) bool { return c == "read" }), ", ")
}

func (d *disk) spoilLayer() {
	d.t.Helper()
	if err := os.Truncate(filepath.Join(d.dirs[0], "app/run"), 0); err != nil {
		d.t.Fatal(err)
	}
}

// mended fails the test when the layers are not what they should be.
func (d *disk) mended() {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.dirs[0], "app/run"))
	if err != nil || !bytes.Equal(data, long) {
		d.t.Errorf("the program has %d bytes, %v, want the original %d bytes", len(data), err, len(long))
	}
}

// TestExamine: what is done, in which order, and what is said, by what is damaged and what is at hand.
func TestExamine(t *testing.T) {
	upper := func(d *disk) string { return d.layers[1] }
	for name, tc := range map[string]struct {
		spoil   func(d *disk)
		suspect string
		again   bool
		made    string
		// says are words of the last event; none: there is no event.
		says    []string
		damaged bool // a condition stays
		mended  bool
	}{
		"a whole image":             {func(*disk) {}, weak, false, "", nil, false, true},
		"a layer":                   {(*disk).spoilLayer, weak, true, "", []string{EventRepaired}, false, true},
		"a failure of another kind": {func(d *disk) { d.spoilLayer() }, "no memory", false, "", nil, false, false},
		"a layer and its blob, with an archive": {func(d *disk) {
			d.spoilLayer()
			d.blobs[upper(d)] = nil
			d.archive()
		}, weak, true,
			"delete blob, garbage, load a.tar", []string{EventRepaired}, false, true},
		"a layer and its blob, which a pull brings": {func(d *disk) {
			d.spoilLayer()
			d.blobs[upper(d)] = []byte("other")
		}, weak, true,
			"delete blob, garbage, pull @", []string{EventRepaired}, false, true},
		"a layer and its blob, with no network": {
			func(d *disk) {
				d.spoilLayer()
				d.blobs[upper(d)] = nil
				d.away = true
			}, weak, false,
			"delete blob, garbage, pull @", []string{
				EventDamaged, "no way to the registry", "docker save registry.example/app:1", "archives",
			}, true, false,
		},
		"a layer and its blob, with an archive in another form": {
			func(d *disk) {
				d.spoilLayer()
				d.blobs[upper(d)] = nil
				d.archive()
				d.foreign = true
			}, weak, true,
			"delete blob, garbage, load a.tar, remove dead1, remove image, load a.tar",
			[]string{EventRepaired, "pulled again"}, false, false,
		},
		"layers that someone holds": {func(d *disk) {
			d.plain = true
			d.users = []string{"other"}
		}, strong, false, "pull", []string{EventDamaged, "other containers are made of it"}, true, true},
		"a manifest": {func(d *disk) {
			d.blobs[d.target] = nil
		}, weak, true, "delete blob, garbage, pull", []string{EventRepaired}, false, true},
		"a blob of an image that is not unpacked": {func(d *disk) {
			d.dirs = nil
			delete(d.blobs, upper(d))
		}, strong, true,
			"delete blob, garbage, pull @", []string{EventRepaired}, false, false},
		"a blob that was found bad and has not come again": {func(d *disk) {
			d.spoilLayer()
			delete(d.blobs, upper(d))
			d.note(d.repairer().opts.Record.SetDamaged(d.id))
		}, weak, true, "pull @", []string{EventRepaired}, false, true},
		"layers that half of containerd has forgotten": {
			func(d *disk) {
				d.noDirs = status.Error(codes.NotFound, `missing parent "k8s.io/9/sha256:e171" bucket: not found`)
			}, "failed to create snapshot: missing parent", true, "pull, remove dead1, remove image",
			[]string{EventRepaired, "pulled again"}, false, false,
		},
		"an image that is not unpacked": {func(d *disk) { d.dirs = nil }, strong, false, "", nil, false, false},
		"the folder of the uppermost layer": {func(d *disk) {
			dir := d.dirs[0]
			d.note(os.RemoveAll(dir))
			d.noDirs = status.Error(codes.Unknown, "failed to stat parent: stat "+dir+": no such file or directory")
			d.look = func() {
				if _, err := os.Stat(dir); err == nil {
					d.noDirs = nil
				}
			}
		}, "failed to stat parent", true, "", []string{EventRepaired}, false, true},
		"a blob that is not kept, and a whole layer": {func(d *disk) { delete(d.blobs, upper(d)) }, weak,
			false, "", nil, false, true},
		"a blob that is not kept, and a strong sign": {func(d *disk) {
			d.spoilLayer()
			delete(d.blobs, upper(d))
		}, strong, true, "pull @", []string{EventRepaired}, false, true},
		"a blob that is not kept, a whole layer, and a strong sign": {func(d *disk) { delete(d.blobs, upper(d)) },
			strong, false, "pull @", nil, false, true},
		"a blob that is not kept, and no network": {func(d *disk) {
			delete(d.blobs, upper(d))
			d.away = true
		}, strong, false, "pull @", []string{EventDamaged, "no way to the registry"}, true, true},
		"a configuration": {func(d *disk) { d.blobs[d.id] = nil }, weak, true, "delete blob, garbage, pull",
			[]string{EventRepaired}, false, true},
		"a manifest and a layer and its blob": {func(d *disk) {
			d.spoilLayer()
			d.blobs[d.target], d.blobs[upper(d)] = nil, nil
		}, weak, true, "delete blob, garbage, pull, delete blob, garbage, pull @", []string{EventRepaired}, false,
			true},
		"another runtime, and a weak sign": {func(d *disk) { d.plain = true }, weak, false, "", nil,
			false, true},
		"another runtime, and a strong sign": {func(d *disk) {
			d.plain = true
		}, strong, true, "pull, remove dead1, remove image", []string{EventRepaired, "pulled again"}, false, true},
		"another runtime, and no network": {func(d *disk) { d.plain, d.away = true, true }, strong,
			false, "pull", []string{EventDamaged, "no way to the registry"}, true, true},
		"another runtime, with an archive": {func(d *disk) { d.plain = true; d.archive() }, strong,
			true, "remove dead1, remove image, load a.tar", []string{EventRepaired}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for the disk
			d := newDisk(t)
			tc.spoil(d)
			dirs := d.dirs
			r := d.repairer()
			if again := r.Examine(t.Context(), d.fails(tc.suspect)); again != tc.again {
				t.Errorf("again: %v, want %v", again, tc.again)
			}
			if made := d.made(); made != tc.made {
				t.Errorf("done: %s\nwant: %s", made, tc.made)
			}
			last := ""
			if len(d.words) > 0 {
				last = d.words[len(d.words)-1]
			}
			for _, word := range tc.says {
				if !strings.Contains(last, word) {
					t.Errorf("last event = %q, want it to contain %q", last, word)
				}
			}
			if len(tc.says) == 0 && last != "" {
				t.Errorf("last event = %q, want none", last)
			}
			if list := d.health.Snapshot(); (len(list) > 0) != tc.damaged {
				t.Errorf("conditions: %+v, want some: %v", list, tc.damaged)
			}
			if tc.mended && len(dirs) > 0 {
				d.dirs = dirs
				d.mended()
			}
		})
	}
}

func (d *disk) note(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) archive() {
	d.t.Helper()
	writeArchive(d.t, filepath.Join(d.at, "archives", "a.tar"), "registry.example/app:1")
}

// TestExamineOnce: an image that was found whole is not read again, not even by the next agent of this boot.
func TestExamineOnce(t *testing.T) {
	d := newDisk(t)
	r := d.repairer()
	if again := r.Examine(t.Context(), d.fails(weak)); again || len(d.calls) == 0 {
		t.Fatalf("Examine() = %t after %d calls, want false after some", again, len(d.calls))
	}
	before := len(d.calls)
	if r.Examine(t.Context(), d.fails(strong)) || d.repairer().Examine(t.Context(), d.fails(strong)) ||
		len(d.calls) != before {
		t.Errorf("a second Examine repaired the image or made calls: %d calls, want false and %d", len(d.calls), before)
	}
}

// TestReplaceOnce: what is done without proof is done once in a boot.
func TestReplaceOnce(t *testing.T) {
	d := newDisk(t)
	d.plain = true
	if !d.repairer().Examine(t.Context(), d.fails(strong)) {
		t.Fatalf("Examine() = false, want true; events %q", d.words)
	}
	d.kept = true
	made := d.made()
	if d.repairer().Examine(t.Context(), d.fails(strong)) || d.made() != made {
		t.Errorf("a second time: %s, want %s", d.made(), made)
	}
}

// TestFailedRepairIsTriedLater: neither at once nor never, and two containers of one image are answered by one repair.
func TestFailedRepairIsTriedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		d.spoilLayer()
		d.blobs[d.layers[1]] = nil
		d.away = true
		r := d.repairer()
		suspect := d.fails(weak)
		if r.Examine(t.Context(), suspect) {
			t.Fatal("Examine() without a network = true, want false")
		}
		d.away = false
		time.Sleep(firstWait / 2)
		if r.Examine(t.Context(), suspect) {
			t.Error("Examine() before the wait has passed = true, want false")
		}
		time.Sleep(firstWait)
		early := d.fails(weak)
		if !r.Examine(t.Context(), suspect) {
			t.Errorf("Examine() after the wait = false, want true; events %q", d.words)
		}
		d.mended()
		d.words = nil
		if again := r.Examine(t.Context(), early); again || len(d.words) > 0 {
			t.Errorf("Examine() of a repaired image = %t with events %q, want false with none", again, d.words)
		}
	})
}

// TestSandboxImage: the image of sandboxes is found by the runtime's own word.
func TestSandboxImage(t *testing.T) {
	d := newDisk(t)
	d.spoilLayer()
	r := d.repairer()
	if r.ExamineSandbox(t.Context(), Failure{Stage: Create, Message: "no network"}, time.Now()) {
		t.Error("ExamineSandbox(no network) = true, want false")
	}
	if !r.ExamineSandbox(t.Context(), Failure{Stage: Start, Message: strong}, time.Now()) {
		t.Errorf("ExamineSandbox(%q) = false, want true", strong)
	}
	d.mended()
}

// TestNeverPull: an image that is never to be pulled is put right from what is here, and from nothing else.
func TestNeverPull(t *testing.T) {
	d := newDisk(t)
	d.spoilLayer()
	d.blobs[d.layers[1]] = nil
	s := d.fails(weak)
	s.Container.ImagePullPolicy = v1.PullNever
	r := d.repairer()
	if r.Examine(t.Context(), s) || strings.Contains(d.made(), "pull") || len(d.health.Snapshot()) != 1 {
		t.Errorf("done: %q, conditions %+v; want no pull and one condition", d.made(), d.health.Snapshot())
	}
	r.ForgetExcept([]string{"registry.example/other:1"})
	if left := d.health.Snapshot(); len(left) != 0 {
		t.Errorf("of an image that nobody names any more: %+v, want none", left)
	}
}

// TestPullFailed: a blob over which a pull stumbles goes, and an archive stands in for a registry that is away.
func TestPullFailed(t *testing.T) {
	const image = "registry.example/app:1"
	for name, tc := range map[string]struct {
		spoil   func(d *disk)
		failure func(d *disk) string
		again   bool
		made    string
	}{
		"no network": {func(*disk) {}, func(*disk) string { return "dial tcp: no route to host" },
			false, ""},
		"no network, with an archive": {(*disk).archive, func(*disk) string { return "dial tcp: no route to host" },
			true, "load a.tar"},
		"a blob that is gone, by its name": {func(d *disk) { d.blobs[d.layers[1]], d.blobs[d.layers[0]] = nil, nil },
			func(d *disk) string { return "blob " + d.layers[1] + " expected at /x: blob not found: not found" }, true,
			"delete blob, garbage"},
		"a blob of unknown name": {func(d *disk) { d.blobs[d.layers[1]] = []byte("short") },
			func(*disk) string {
				return "failed to extract layer sha256:" + strings.Repeat("0", 64) + ": unexpected EOF"
			}, true, "delete blob, garbage"},
		"all blobs are right": {func(*disk) {}, func(*disk) string { return "unexpected EOF" }, false, ""},
		"a layer that is gone": {func(d *disk) { d.dirs = nil },
			func(d *disk) string {
				return "failed to stat parent: stat " + d.at + "/snapshots/9/fs: no such file or directory"
			}, true, ""},
		"a path that is not the runtime's": {func(*disk) {},
			func(*disk) string { return "failed to stat parent: stat /nowhere/9/fs: no such file or directory" }, false,
			""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for the disk
			d := newDisk(t)
			tc.spoil(d)
			r := d.repairer()
			if again := r.PullFailed(t.Context(), image, errors.New(tc.failure(d))); again != tc.again ||
				d.made() != tc.made {
				t.Errorf("%v: %s; want %v: %s", again, d.made(), tc.again, tc.made)
			}
			before := d.made()
			if r.PullFailed(t.Context(), image, errors.New(tc.failure(d))) || d.made() != before {
				t.Errorf("at once again: %s, want %s", d.made(), before)
			}
		})
	}
}

// TestNestedLists: lists that name one another many times are read once each, and not without end.
func TestNestedLists(t *testing.T) {
	for name, tc := range map[string]struct {
		levels, times int
	}{
		"many times":      {3, 1000},
		"deep":            {50, 1},
		"deep, and often": {50, 100},
	} {
		d := &disk{t: t, blobs: map[string][]byte{}}
		have := map[string]bool{}
		below := d.add([]byte(`{"config":{"digest":"another"}}`))
		have[below] = true
		for range tc.levels {
			list := `{"digest":"` + below + `"}`
			below = d.add([]byte(`{"manifests":[` + strings.TrimSuffix(strings.Repeat(list+",", tc.times), ",") + `]}`))
			have[below] = true
		}
		v := verifier{Store: d, have: have}
		if im, err := v.image(t.Context(), below, "id"); !errors.Is(err, errAbsent) {
			t.Errorf("%s: %+v, %v; want %v", name, im, err, errAbsent)
		}
	}
}

// FuzzImage: whatever the documents of an image say, each of its layers has a name.
func FuzzImage(f *testing.F) {
	f.Add([]byte(`{"config":{"digest":"CONFIG"},"layers":[{"digest":"sha256:l"}]}`),
		[]byte(`{"rootfs":{"diff_ids":["sha256:d"]}}`))
	f.Add([]byte(`{"manifests":[{"digest":"CONFIG"}]}`), []byte(`[]`))
	for _, text := range membound.JSON(`{"config":{"digest":"CONFIG"},"layers":`, `}`, 64<<10) {
		f.Add([]byte(text), []byte(`{}`))
	}
	for _, text := range membound.JSON(`{"rootfs":{"diff_ids":`, `}}`, 64<<10) {
		f.Add([]byte(`{"config":{"digest":"CONFIG"},"layers":[{"digest":"sha256:l"}]}`), []byte(text))
	}
	f.Add([]byte(membound.Repeat(`{"manifests":[`, `{"digest":"CONFIG"}`, `,`, `]}`, 8<<10)),
		[]byte(`{"manifests":[{}]}`))
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		d := &disk{t: t, blobs: map[string][]byte{}}
		id := d.add(config)
		target := d.add(bytes.ReplaceAll(manifest, []byte("CONFIG"), []byte(id)))
		v := verifier{Store: d, have: map[string]bool{id: true, target: true}}
		var im image
		var err error
		// The shortest layer has 3 bytes and becomes a string of 16, in lists that grow by a quarter; documents are
		// read into buffers that grow likewise.
		membound.Check(t, membound.Linear(len(manifest)+len(config), 256), func() {
			im, err = v.image(t.Context(), target, id)
		})
		if err == nil && (len(im.layers) != len(im.diffs) || im.chain() == "" && im.diffs[0] != "") {
			t.Errorf("image(...) = %+v, nil, want one diff for each layer, or an error", im)
		}
	})
}
