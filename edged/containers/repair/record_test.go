package repair

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestNextRecord(t *testing.T) {
	for name, tc := range map[string]struct {
		before *record
		want   record
	}{
		"a new device":      {nil, record{Boot: "2"}},
		"a reboot in order": {&record{Boot: "1", Clean: true, Good: []string{"a"}}, record{Boot: "2"}},
		"a power cut":       {&record{Boot: "1", Good: []string{"a"}}, record{Boot: "2", Unclean: true}},
		"a damage that is known": {&record{
			Boot:    "1",
			Clean:   true,
			Good:    []string{"a"},
			Damaged: []string{"b"},
		}, record{Boot: "2", Damaged: []string{"b"}}},
		"a blob that was being fetched": {&record{Boot: "1", Fetched: []string{"a@b"}}, record{
			Boot:    "2",
			Unclean: true,
			Fetched: []string{"a@b"},
		}},
		"a file that the cut left torn": {&record{}, record{Boot: "2", Unclean: true}},
		"the agent restarts": {&record{
			Boot:    "2",
			Clean:   true,
			Unclean: true,
			Good:    []string{"a"},
		}, record{Boot: "2", Unclean: true, Good: []string{"a"}}},
		"the agent was killed": {
			&record{Boot: "2", Replaced: []string{"a"}}, record{Boot: "2", Replaced: []string{"a"}},
		},
	} {
		if diff := cmp.Diff(tc.want, nextRecord(tc.before, "2")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestRecordOverBoots: what is known holds over restarts of the agent and ends with the boot.
func TestRecordOverBoots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	open := func(boot string) *Record {
		t.Helper()
		r, err := OpenRecord(dir, boot)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open("1")
	if err := r.SetGood("image"); err != nil || r.Unclean() {
		t.Fatalf("SetGood() = %v, Unclean() = %v; want nil, false", err, r.Unclean())
	}
	if err := r.SetReplaced("other"); err != nil {
		t.Fatal(err)
	}
	r = open("1") // kill -9
	if !r.Good("image") || !r.Replaced("other") || r.Good("other") || r.Unclean() {
		t.Errorf("after a restart: %+v, want the image good, the other replaced, and no power cut", r.doc)
	}
	r = open("2")
	if r.Good("image") || !r.Unclean() {
		t.Errorf("after a power cut: %+v, want nothing good, and a power cut", r.doc)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if r = open("3"); r.Unclean() {
		t.Errorf("after a reboot: %+v, want no power cut", r.doc)
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r = open("3"); !r.Unclean() {
		t.Errorf("Unclean() with an empty record %+v = false, want true", r.doc)
	}
}

// TestRecordOnNoDisk: a disk that cannot be written is reported, and the record holds as long as the agent.
func TestRecordOnNoDisk(t *testing.T) {
	r, err := OpenRecord("/proc/nowhere", "1")
	if err == nil {
		t.Error("OpenRecord(/proc/nowhere) = nil, want an error")
	}
	if err := r.SetGood("image"); err == nil || !r.Good("image") {
		t.Errorf("%v; known: %v; want an error, and the image known", err, r.Good("image"))
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"boot":"1","clean":true,"good":["a"]}`))
	f.Add([]byte{})
	for _, text := range membound.JSON(`{"boot":"1","clean":true,"good":`, `}`, 64<<10) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var last *record
		// An empty name has 3 bytes and becomes a string of 16, in a list that grows by a quarter.
		membound.Check(t, membound.Linear(len(data), 128), func() { last = decodeRecord(data) })
		next := nextRecord(last, "\x00 no boot")
		if len(next.Good) > 0 || next.Boot != "\x00 no boot" {
			t.Errorf("the next record is %+v, want nothing good, and this boot", next)
		}
	})
}
