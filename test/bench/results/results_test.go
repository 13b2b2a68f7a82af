package results

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    Summary
	}{
		{nil, Summary{}},
		{[]float64{2}, Summary{1, 2, 2, 2, 2, 2}},
		{[]float64{4, 1, 3, 2}, Summary{4, 2.5, 1.75, 3.25, 1, 4}},
		{[]float64{5, 1, 3}, Summary{3, 3, 2, 4, 1, 5}},
		{[]float64{0, 0}, Summary{N: 2}},
	} {
		if got := Summarize(c.samples); got != c.want {
			t.Errorf("Summarize(%v) = %+v, want %+v", c.samples, got, c.want)
		}
	}
}

func TestRound(t *testing.T) {
	for value, want := range map[float64]float64{
		0: 0, 1.23456789: 1.23457, 123456789: 123457000, 0.000123456789: 0.000123457,
	} {
		if got := Round(value); Format("", got) != Format("", want) || got-want > want/1e9 || want-got > want/1e9 {
			t.Errorf("Round(%v) = %v, want %v", value, got, want)
		}
	}
}

// TestRatio: the best floor counts, the interval is around the ratio, and the same samples have the same.
func TestRatio(t *testing.T) {
	ours := []float64{2.9, 3, 3.1, 3, 3}
	floors := [][]float64{{2, 2.1, 1.9}, {1.5, 1.6, 1.4}, {4, 4, 4}}
	got := RatioTo(ours, floors)
	if got.Value != 2 || got.Low > 2 || got.High < 2 || got.Low < 1.7 || got.High > 2.3 {
		t.Errorf("RatioTo = %+v, want 2 in a narrow interval", got)
	}
	if again := RatioTo(ours, floors); again != got {
		t.Errorf("RatioTo of the same samples = %+v, want %+v again", again, got)
	}
	if exact := RatioTo([]float64{3, 3}, [][]float64{{2, 2}}); exact != (Ratio{1.5, Interval{1.5, 1.5}}) {
		t.Errorf("RatioTo of equal samples = %+v, want 1.5 without spread", exact)
	}
}

var burst30 = Point{Pods: 30}

func sample(t *testing.T) *File {
	t.Helper()
	f := &File{Schema: Schema}
	f.Add(Run{ID: "a", Began: time.Date(2026, 11, 25, 22, 0, 0, 0, time.UTC)}, []Series{
		{Metric: BurstLast, Subject: EdgeCore, At: burst30, Samples: []float64{3, 3.5}},
		{Metric: BurstLast, Subject: Floor, At: Point{Pods: 30, Parallel: 8}, Samples: []float64{2.5}},
		{Metric: BurstLast, Subject: Floor, At: Point{Pods: 30, Parallel: 30}, Samples: []float64{3.5}},
		{Metric: BurstLast, Subject: Floor, At: Point{Pods: 20, Parallel: 8}, Samples: []float64{1.5}},
		{Metric: RSS, Subject: EdgeCore, Samples: []float64{34e6}},
	})
	return f
}

// TestAdd: a later run replaces what it has measured again, and nothing else; a run of which nothing is left goes.
func TestAdd(t *testing.T) {
	f := sample(t)
	if r, ok := f.RatioOf(BurstLast, burst30); !ok || r.Value != 1.3 {
		t.Errorf("ratio %+v, %v, want 1.3: 3.25 to the best floor", r, ok)
	}
	f.Add(Run{ID: "b"}, []Series{{Metric: BurstLast, Subject: EdgeCore, At: burst30, Samples: []float64{2}}})
	if s, _ := f.Find(BurstLast, EdgeCore, burst30); s.Run != "b" || s.Summary.Median != 2 {
		t.Errorf("the series is %+v, want that of run b", s)
	}
	if _, ok := f.RatioOf(BurstLast, burst30); ok {
		t.Error("there is a ratio to the floor of another run, want none")
	}
	if s, _ := f.Find(RSS, EdgeCore, Point{}); s.Run != "a" {
		t.Errorf("the memory is of run %q, want a", s.Run)
	}
	f.Add(Run{ID: "c"}, f.Series)
	if len(f.Runs) != 1 {
		t.Errorf("runs are %+v, want c alone", f.Runs)
	}
}

func TestFloors(t *testing.T) {
	list := sample(t).Floors(BurstLast, burst30)
	best, ok := Best(list)
	if len(list) != 2 || !ok || best.At.Parallel != 8 {
		t.Errorf("floors are %+v, the best %+v; want two, the best with 8 at a time", list, best)
	}
	if _, ok := Best(nil); ok {
		t.Error("the best of none is there, want none")
	}
}

// TestSaveAndLoad: what was saved is what is loaded, in lines that a person can read.
func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "record.json")
	want := sample(t)
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("loaded (-saved +loaded):\n%s", diff)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if line := `"at": { "pods": 30, "parallel": 8 }`; !strings.Contains(string(text), line) {
		t.Errorf("the file is %s, want a line with %s", text, line)
	}
	if empty, err := LoadOrNew(filepath.Join(t.TempDir(), "none")); err != nil || empty.Schema != Schema {
		t.Errorf("a file that is not there is %+v, %v, want a new one", empty, err)
	}
}

// TestRefused: what a person or another version has changed is not taken for results.
func TestRefused(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*File)
		want   string
	}{
		"another version": {func(f *File) { f.Schema = 2 }, "schema is 2"},
		"unknown metric":  {func(f *File) { f.Series[0].Metric = "speed" }, `metric "speed" is unknown`},
		"no samples":      {func(f *File) { f.Series[0].Samples = nil }, "has no samples"},
		"wrong summary":   {func(f *File) { f.Series[0].Summary.Median = 1 }, "its samples make"},
		"no such run":     {func(f *File) { f.Series[0].Run = "z" }, `is of run "z"`},
	} {
		f := sample(t)
		c.change(f)
		if err := f.check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: check = %v, want %q in it", what, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Error("half a file is loaded, want an error")
	}
}

// TestRecorder: samples of the same series are together, and a file gets them in the place of older ones.
func TestRecorder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record.json")
	for _, median := range []float64{1, 2} {
		r, err := NewRecorder(t.Context(), path, map[string]string{"nothing": "/does/not/exist"})
		if err != nil {
			t.Fatal(err)
		}
		r.Times(CreatePlain, EdgeCore, Point{}, time.Duration(median*float64(time.Second)))
		r.Times(CreatePlain, EdgeCore, Point{}, time.Duration(median*float64(time.Second)))
		if err := r.Save(); err != nil {
			t.Fatal(err)
		}
		f, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Series) != 1 || f.Series[0].Summary.N != 2 || f.Series[0].Summary.Median != median {
			t.Errorf("the file has %+v, want one series of two samples %v", f.Series, median)
		}
		if f.Runs[0].Programs["nothing"] != "unknown" || f.Runs[0].Machine.Cores < 1 {
			t.Errorf("the run is %+v, want this machine, and an unknown program", f.Runs[0])
		}
	}
}

func TestFileSystem(t *testing.T) {
	if got := fileSystem("/proc/sys"); got != "proc" {
		t.Errorf("fileSystem(/proc/sys) = %q, want proc", got)
	}
	if got := fileSystem("/does/not/exist"); got != "unknown" {
		t.Errorf("fileSystem(/does/not/exist) = %q, want unknown", got)
	}
	root := t.TempDir()
	own := fileSystem(root)
	dir, sibling := filepath.Join(root, "data"), filepath.Join(root, "data2")
	for _, d := range []string{dir, sibling} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The topmost of two mounts on a folder counts, also for folders in it.
	for _, fs := range []string{"tmpfs", "ramfs"} {
		if err := unix.Mount("none", dir, fs, 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		below := filepath.Join(dir, "below")
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		for at, want := range map[string]string{dir: fs, below: fs, sibling: own} {
			if got := fileSystem(at); got != want {
				t.Errorf("fileSystem(%s) = %q, want %s", at, got, want)
			}
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		unit  Unit
		value float64
		want  string
	}{
		{Seconds, 0.2741, "0.274 s"},
		{Seconds, 6.11, "6.11 s"},
		{Seconds, 0.019, "19 ms"},
		{Bytes, 34.06e6, "34.1 MB"},
		{Bytes, 44.2e3, "44.2 KB"},
		{BytesAMinute, 0, "0 bytes/min"},
		{BytesAMinute, 210, "210 bytes/min"},
		{Percent, 2.5, "2.50 %"},
		{Percent, 0.2, "0.200 %"},
	} {
		if got := Format(c.unit, c.value); got != c.want {
			t.Errorf("Format(%q, %v) = %q, want %q", c.unit, c.value, got, c.want)
		}
	}
}

func TestFormatTick(t *testing.T) {
	for _, c := range []struct {
		unit  Unit
		value float64
		want  string
	}{
		{Seconds, 0, "0"},
		{Seconds, 0.05, "50 ms"},
		{Seconds, 0.30000000000000004, "0.3 s"},
		{Seconds, 5, "5 s"},
		{Bytes, 150e6, "150 MB"},
		{BytesAMinute, 2500, "2.5 KB"},
		{BytesAMinute, 400, "400 B"},
		{Percent, 0.5, "0.5 %"},
	} {
		if got := FormatTick(c.unit, c.value); got != c.want {
			t.Errorf("FormatTick(%q, %v) = %q, want %q", c.unit, c.value, got, c.want)
		}
	}
}

// TestMetrics: names differ, and each metric says how it is measured.
func TestMetrics(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range Metrics() {
		if seen[m.Name] || m.Title == "" || m.Unit == "" || !strings.HasPrefix(m.Command, "go run ./test/bench/") {
			t.Errorf("metric %+v; want a name of its own, a title, a unit, and a command", m)
		}
		seen[m.Name] = true
	}
	if _, ok := MetricOf("speed"); ok {
		t.Error("MetricOf finds speed, want nothing")
	}
}
