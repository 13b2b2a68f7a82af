package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

// root is the module's folder.
var root = filepath.Join("..", "..", "..")

// TestTables: the tables of README and docs/benchmarks.md are those of the recorded results.
func TestTables(t *testing.T) {
	f, err := results.Load(filepath.Join(root, results.Recorded))
	if err != nil {
		t.Fatal(err)
	}
	for file, c := range map[string]struct {
		markers markers
		table   string
	}{
		"README.md":          {figuresMarkers, figures(f)},
		"docs/benchmarks.md": {tableMarkers, markdown(f)},
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		want, err := c.markers.replaceTable(string(text), c.table)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(text)); diff != "" {
			t.Errorf("the table of %s is not the one of %s; make bench-page writes it (-want +got):\n%s", file,
				results.Recorded, diff)
		}
	}
}

// TestRecordedPage: the page that is checked in is the one of the recorded results.
func TestRecordedPage(t *testing.T) {
	f, err := results.Load(filepath.Join(root, results.Recorded))
	if err != nil {
		t.Fatal(err)
	}
	want, err := render(f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "bench", "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("bench/index.html is not the page of %s; make bench-page writes it", results.Recorded)
	}
}

// recorded has something of every metric.
func recorded() *results.File {
	f := &results.File{Schema: results.Schema}
	var series []results.Series
	add := func(metric, subject string, at results.Point, samples ...float64) {
		series = append(series, results.Series{Metric: metric, Subject: subject, At: at, Samples: samples})
	}
	for _, m := range results.Metrics() {
		switch {
		case strings.HasPrefix(m.Name, "cloud-"):
			for _, nodes := range []int{100, 1000} {
				add(m.Name, results.CloudCore, results.Point{Nodes: nodes, Replicas: 1}, float64(nodes))
			}
		case m.Name == results.BurstCloud:
			add(m.Name, results.CloudCore, results.Point{Pods: 30}, 0.36)
		case results.IsBurst(m.Name):
			for _, subject := range []string{results.Kubelet, results.EdgeCore} {
				add(m.Name, subject, results.Point{Pods: 30}, 3, 4, 5)
			}
			add(m.Name, results.Floor, results.Point{Pods: 30, Parallel: 8}, 2)
			add(m.Name, results.Floor, results.Point{Pods: 30, Parallel: 30}, 3)
		case m.Unit == results.Seconds:
			for _, subject := range []string{results.Kubelet, results.EdgeCore, results.Floor} {
				add(m.Name, subject, results.Point{}, 0.2, 0.3, 0.4)
			}
		default:
			for _, pods := range []int{0, 30} {
				add(m.Name, results.EdgeCore, results.Point{Pods: pods}, 34e6)
				add(m.Name, results.Kubelet, results.Point{Pods: pods}, 85e6)
			}
		}
	}
	f.Add(results.Run{
		ID: "run", Began: time.Date(2026, 11, 25, 22, 0, 0, 0, time.UTC), Commit: "abc", Command: "<peers>",
		Machine:  results.Machine{Processor: "A&B", Cores: 2, MemoryMB: 24576, Kernel: "6.1"},
		Programs: map[string]string{"kubelet": "Kubernetes v1.36.3", "containerd": "containerd github.com/x v1.6.20 1"},
	}, series)
	return f
}

func TestMarkdown(t *testing.T) {
	text := markdown(recorded())
	for _, want := range []string{
		"Recorded on 2026-11-25 on 2 cores (A&B) with containerd 1.6.20 and kubelet v1.36.3.\n",
		"| create → Running, default pod (token volume) | 0.300 s (0.250 to 0.350 s) | 0.300 s (0.250 to 0.350 s) | " +
			"0.300 s (0.250 to 0.350 s) | 1.00x | <= floor + 60 ms |\n",
		"| burst of 30, last Running | 4.00 s (3.50 to 4.50 s) | 4.00 s (3.50 to 4.50 s) | 2.00 s, 8 at a time | " +
			"2.00x | <= 1.10x floor + 0.5 s |\n",
		"| CPU of cloudcore for a burst of 30, with its deletion |  | 0.360 s |  |  |  |\n",
		"| RSS of the agent, 0 pods, fresh | 85.0 MB | 34.0 MB |  |  | <= 32 MB |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table is\n%s\nwant in it %s", text, want)
		}
	}
	two := recorded()
	earlier := two.Runs[0]
	earlier.ID, earlier.Began, earlier.Machine.Processor = "earlier", earlier.Began.Add(-time.Hour), "C"
	two.Runs = append(two.Runs, earlier, earlier)
	text = markdown(two)
	want := "v1.36.3. Other rows come from earlier runs on another processor (C); the page lists all runs.\n"
	if !strings.Contains(text, want) {
		t.Errorf("the table of two machines is\n%s\nwant in it %s", text, want)
	}
	if empty := markdown(&results.File{}); !strings.Contains(empty, "Nothing is recorded yet.") {
		t.Errorf("the table of nothing is %q, want it to say so", empty)
	}
}

func TestReplaceTable(t *testing.T) {
	text := "a\n" + tableMarkers.begin + "\nold\n" + tableMarkers.end + "\nb\n"
	got, err := tableMarkers.replaceTable(text, "new\n")
	if want := "a\n" + tableMarkers.begin + "\nnew\n" + tableMarkers.end + "\nb\n"; err != nil || got != want {
		t.Errorf("replaceTable = %q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"", tableMarkers.begin + "\n", tableMarkers.end + "\n" + tableMarkers.begin + "\n"} {
		if _, err := tableMarkers.replaceTable(bad, "new"); err == nil {
			t.Errorf("tableMarkers.replaceTable(%q) has no error, want one: a line is missing", bad)
		}
	}
}

// outside matches what a page would load.
var outside = regexp.MustCompile(`(?i)<script|<link|<img|@import|url\(|src=|https?://`)

// TestRender: the page has each section with its plots, escapes its texts, and loads nothing.
func TestRender(t *testing.T) {
	page, err := render(recorded())
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	if found := outside.FindString(text); found != "" {
		t.Errorf("the page has %q, want nothing that is loaded", found)
	}
	for _, want := range []string{"A&amp;B", "&lt;peers&gt;", `id="latency"`, `id="bursts"`, `id="cpu"`, `id="pods"`,
		`id="nodes"`, "prefers-color-scheme: dark",
		"--levels 10,60,110,250", "--nodes 5000,10000", "--nodes 100,1000,5000,10000 --replicas 3", "--sizes 10,20"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %q, want it there", want)
		}
	}
	if got, want := strings.Count(text, "<svg"), 4+3+2+6+8; got != want {
		t.Errorf("%d plots, want %d", got, want)
	}
	d := xml.NewDecoder(strings.NewReader(strings.TrimPrefix(text, "<!doctype html>")))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("an element of the page does not end: %v", err)
		}
	}
	again, err := render(recorded())
	if err != nil || !bytes.Equal(again, page) {
		t.Errorf("the page of the same results differs (error %v), want it the same", err)
	}
}

// TestNothing: a page of nothing says how all is measured.
func TestNothing(t *testing.T) {
	page, err := render(&results.File{Schema: results.Schema})
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	if strings.Contains(text, "<svg") || !strings.Contains(text, "./test/bench/peers --parts token,plain") {
		t.Errorf("the page of nothing is\n%s\nwant no plots, and the commands", text)
	}
}

// TestFleetMissing: a fleet counts as missing until all of its parts were measured.
func TestFleetMissing(t *testing.T) {
	f := recorded()
	f.Add(results.Run{ID: "half"}, []results.Series{{
		Metric:  results.CloudRSS,
		Subject: results.CloudCore,
		At:      results.Point{Nodes: 5000, Replicas: 1},
		Samples: []float64{1},
	}})
	if got, want := fleetMissing(f)[0].What, "1 cloudcore with 5000,10000 nodes"; got != want {
		t.Errorf("missing is %q, want %q", got, want)
	}
}

// TestRun writes both into a folder.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	from, readme, doc := filepath.Join(dir, "record.json"), filepath.Join(dir, "README.md"), filepath.Join(dir, "b.md")
	if err := recorded().Save(from); err != nil {
		t.Fatal(err)
	}
	for file, m := range map[string]markers{readme: figuresMarkers, doc: tableMarkers} {
		if err := os.WriteFile(file, []byte("# x\n"+m.begin+"\n"+m.end+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page := filepath.Join(dir, "bench", "index.html")
	if err := run(from, page, doc, readme); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{readme, doc} {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "| burst of 30, last Running |") {
			t.Errorf("%s is %q, %v, want a table in it", file, text, err)
		}
	}
	if _, err := os.Stat(page); err != nil {
		t.Errorf("the page: %v, want it there", err)
	}
	if err := run(filepath.Join(dir, "none"), page, doc, readme); err == nil {
		t.Error("results that are not there make a page, want an error")
	}
}
