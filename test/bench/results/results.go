// Package results reads and writes files of benchmark results. bench/record.json is the recorded file; what
// `make bench-page` writes is made from it, and `make bench-check` compares with it. The format has a version. Each
// series has its samples and the ID of the run that took them; a run has its commit, machine and programs.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Schema is the version of the format. A file of another version is refused.
const Schema = 1

// Recorded is the path of the recorded file in the module's folder.
const Recorded = "bench/record.json"

// The subjects that are measured.
const (
	EdgeCore  = "edgecore"
	Kubelet   = "kubelet"
	CloudCore = "cloudcore"
	// Floor is the least that a measurement can take: bare CRI calls, or a client of the API that watches.
	Floor = "floor"
)

// File is a file of results.
type File struct {
	Schema int      `json:"schema"`
	Runs   []Run    `json:"runs"`
	Series []Series `json:"series"`
}

// Run is one start of a benchmark.
type Run struct {
	ID      string    `json:"id"`
	Began   time.Time `json:"began"`
	Commit  string    `json:"commit"`
	Command string    `json:"command"`
	Machine Machine   `json:"machine"`
	// Programs are the versions of the measured programs and of those that they ran on.
	Programs map[string]string `json:"programs,omitempty"`
}

// Machine is the machine of a run.
type Machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	MemoryMB  int64  `json:"memoryMB"`
	Kernel    string `json:"kernel"`
	// FileSystem is the type of the file system of temporary files, such as "ext4". The agents, their runtimes and the
	// cluster keep their files there.
	FileSystem string `json:"fileSystem,omitempty"`
}

// Point is the load under which a series was measured. Numbers that have no meaning for the metric are 0.
type Point struct {
	// Pods is the number of pods on the node, or in the burst.
	Pods int `json:"pods,omitempty"`
	// Parallel is the number of pods that the floor works on at a time.
	Parallel int `json:"parallel,omitempty"`
	// Nodes is the number of nodes, Replicas the number of cloudcores.
	Nodes    int `json:"nodes,omitempty"`
	Replicas int `json:"replicas,omitempty"`
}

// Series is a metric of a subject at a point.
type Series struct {
	Metric  string `json:"metric"`
	Subject string `json:"subject"`
	At      Point  `json:"at"`
	// Run is the ID of the run.
	Run string `json:"run"`
	// Summary is computed from the samples, for readers of the file.
	Summary Summary `json:"summary"`
	// Samples are in the metric's unit, in the order in which they were taken.
	Samples []float64 `json:"samples"`
}

// Load reads a file and checks it.
func Load(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	f := &File{}
	if err := json.Unmarshal(data, f); err != nil {
		return nil, fmt.Errorf("read results in %s: %w", path, err)
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("results in %s: %w", path, err)
	}
	return f, nil
}

// LoadOrNew loads a file, or returns an empty one if it does not exist.
func LoadOrNew(path string) (*File, error) {
	f, err := Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &File{Schema: Schema}, nil
	}
	return f, err
}

func (f *File) check() error {
	if f.Schema != Schema {
		return fmt.Errorf("schema is %d, this program knows %d; measure again", f.Schema, Schema)
	}
	for _, s := range f.Series {
		switch _, known := MetricOf(s.Metric); {
		case !known:
			return fmt.Errorf("metric %q is unknown", s.Metric)
		case len(s.Samples) == 0:
			return fmt.Errorf("%s has no samples", s.name())
		case s.Summary != Summarize(s.Samples):
			return fmt.Errorf("the summary of %s is %+v, its samples make %+v", s.name(), s.Summary,
				Summarize(s.Samples))
		case f.RunOf(s).ID == "":
			return fmt.Errorf("%s is of run %q, which is not there", s.name(), s.Run)
		}
	}
	return nil
}

func (s Series) name() string { return fmt.Sprintf("%s of %s at %+v", s.Metric, s.Subject, s.At) }

// Save writes the file atomically.
func (f *File) Save(path string) error {
	f.tidy()
	data, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(compact(data), '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// tidy sorts the series, and drops runs that have no series left.
func (f *File) tidy() {
	slices.SortStableFunc(f.Series, func(a, b Series) int { return compare(a, b) })
	f.Runs = slices.DeleteFunc(f.Runs, func(r Run) bool {
		return !slices.ContainsFunc(f.Series, func(s Series) bool { return s.Run == r.ID })
	})
	slices.SortStableFunc(f.Runs, func(a, b Run) int { return strings.Compare(a.ID, b.ID) })
}

// Add adds the series of a run. They replace series of the same metrics, subjects and points.
func (f *File) Add(run Run, series []Series) {
	f.Runs = slices.DeleteFunc(f.Runs, func(r Run) bool { return r.ID == run.ID })
	f.Runs = append(f.Runs, run)
	for _, s := range slices.Clone(series) { // which may be the file's own
		s.Run, s.Summary = run.ID, Summarize(s.Samples)
		f.Series = slices.DeleteFunc(f.Series, func(old Series) bool { return compare(old, s) == 0 })
		f.Series = append(f.Series, s)
	}
	f.tidy()
}

// Find returns a series.
func (f *File) Find(metric, subject string, at Point) (Series, bool) {
	for _, s := range f.Series {
		if s.Metric == metric && s.Subject == subject && s.At == at {
			return s, true
		}
	}
	return Series{}, false
}

// Of returns the series of a metric of a subject, by point.
func (f *File) Of(metric, subject string) []Series {
	var list []Series
	for _, s := range f.Series {
		if s.Metric == metric && s.Subject == subject {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, compare)
	return list
}

// RunOf returns the run of a series; the zero Run if there is none.
func (f *File) RunOf(s Series) Run {
	for _, r := range f.Runs {
		if r.ID == s.Run {
			return r
		}
	}
	return Run{}
}
