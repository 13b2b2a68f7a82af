package results

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Recorder collects the samples of a run and writes them to a file, unless the path is empty.
type Recorder struct {
	run    Run
	path   string
	series []Series
}

// NewRecorder begins a run. programs are the paths, by name, of the programs whose versions are recorded.
func NewRecorder(ctx context.Context, path string, programs map[string]string) (*Recorder, error) {
	now := time.Now().UTC().Truncate(time.Second)
	r := &Recorder{path: path, run: Run{
		Began:    now,
		Commit:   output(ctx, "git", "rev-parse", "--short=10", "HEAD"),
		Command:  command(os.Args),
		Programs: map[string]string{},
	}}
	r.run.ID = now.Format("20060102T150405") + "-" + r.run.Commit
	for name, program := range programs {
		r.run.Programs[name] = output(ctx, program, "--version")
	}
	var err error
	r.run.Machine, err = thisMachine()
	return r, err
}

// command returns the command line, without the folder of the program.
func command(args []string) string {
	return strings.Join(append([]string{filepath.Base(args[0])}, args[1:]...), " ")
}

// output returns the first line that a program prints, or "unknown" if it fails.
func output(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || line == "" {
		return "unknown"
	}
	return line
}

func thisMachine() (Machine, error) {
	m := Machine{Processor: runtime.GOARCH, Cores: runtime.NumCPU()}
	var name unix.Utsname
	var info unix.Sysinfo_t
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("read the kernel's version: %w", err)
	}
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("read the machine's memory: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	m.MemoryMB = int64(uint64(info.Totalram) * uint64(info.Unit) >> 20)
	m.FileSystem = fileSystem(os.TempDir())
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("read the machine's processor: %w", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			m.Processor = strings.TrimSpace(value)
			break
		}
	}
	return m, nil
}

// fileSystem returns the type of the file system that a folder is on, or "unknown". For ext4 it adds whether the
// journal is missing: without one, the kernel needs far more time to create a file soon after others were removed. In a
// container it is "overlay", whatever that is on.
func fileSystem(dir string) string {
	const unknown = "unknown"
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &st); err != nil {
		return unknown
	}
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		is := uint64(i.ID) == st.Mnt_id
		return !is, is
	})
	if err != nil || len(mounts) == 0 {
		return unknown
	}
	m := mounts[0]
	if m.FSType != "ext4" {
		return m.FSType
	}
	device, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", m.Major, m.Minor))
	if err != nil {
		return unknown
	}
	journals, err := os.ReadDir("/proc/fs/jbd2")
	if err == nil && !slices.ContainsFunc(journals, func(j os.DirEntry) bool {
		return strings.HasPrefix(j.Name(), filepath.Base(device)+"-")
	}) {
		return "ext4 without a journal"
	}
	return m.FSType
}

// Samples adds samples to a series.
func (r *Recorder) Samples(metric, subject string, at Point, samples ...float64) {
	for i := range r.series {
		if s := &r.series[i]; s.Metric == metric && s.Subject == subject && s.At == at {
			s.Samples = append(s.Samples, rounded(samples)...)
			return
		}
	}
	r.series = append(r.series, Series{Metric: metric, Subject: subject, At: at, Samples: rounded(samples)})
}

// Times is Samples for a metric in seconds.
func (r *Recorder) Times(metric, subject string, at Point, times ...time.Duration) {
	for _, t := range times {
		r.Samples(metric, subject, at, t.Seconds())
	}
}

func rounded(samples []float64) []float64 {
	list := make([]float64, len(samples))
	for i, s := range samples {
		list[i] = Round(s)
	}
	return list
}

// Save writes the samples into the file, where they replace older ones of the same measurements.
func (r *Recorder) Save() error {
	if r.path == "" || len(r.series) == 0 {
		return nil
	}
	f, err := LoadOrNew(r.path)
	if err != nil {
		return err
	}
	f.Add(r.run, r.series)
	return f.Save(r.path)
}

// File returns the results so far.
func (r *Recorder) File() *File {
	f := &File{Schema: Schema}
	f.Add(r.run, r.series)
	return f
}
