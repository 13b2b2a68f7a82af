package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3" // opens the store
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/bench/process"
)

// figure is a number that must not grow with the number of pods that have been.
type figure struct {
	name string
	// value is in bytes where bytes is true.
	value int64
	bytes bool
	// slack is by how much it may be more at the end: what varies by itself.
	slack int64
}

// exceeds says what has grown; "" where nothing has. It is pure.
func (f figure) exceeds(first figure) string {
	if f.value <= first.value+f.slack {
		return ""
	}
	return fmt.Sprintf("%s: %s at first, %s at the end, of which %s may vary", f.name, first.text(), f.text(),
		figure{value: f.slack, bytes: f.bytes}.text())
}

func (f figure) text() string {
	if f.bytes {
		return fmt.Sprintf("%.1f MB", float64(f.value)/1e6)
	}
	return strconv.FormatInt(f.value, 10)
}

// result is what was found.
type result struct {
	first, end []figure
	// firstAt and endAt are after how many pods they were taken.
	firstAt, endAt int
	// kills are of processes of pods, agentKills of the agent.
	kills, agentKills int
}

// table is the figures beside each other.
func (r *result) table(o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%d pods in waves of %d, %d of their processes killed, the agent killed %d times; seed %d\n\n",
		r.endAt, o.wave, r.kills, r.agentKills, o.seed)
	fmt.Fprintf(&b, "| what | after %d | after %d |\n|---|---|---|\n", r.firstAt, r.endAt)
	for i, f := range r.end {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.name, r.first[i].text(), f.text())
	}
	return b.String()
}

// line is figures in a line.
func line(list []figure) string {
	var parts []string
	for _, f := range list {
		parts = append(parts, f.name+" "+f.text())
	}
	return strings.Join(parts, ", ")
}

// verdict is an error where something has grown.
func (r *result) verdict() error {
	var errs []error
	for i, f := range r.end {
		if text := f.exceeds(r.first[i]); text != "" {
			errs = append(errs, errors.New(text))
		}
	}
	return errors.Join(errs...)
}

// figures looks at everything.
func (s *soaker) figures(ctx context.Context) ([]figure, error) {
	pid := s.agent.PID()
	rss, anon, err := s.calmMemory(ctx, pid)
	if err != nil {
		return nil, err
	}
	goroutines, err := s.metric(ctx, "go_goroutines")
	if err != nil {
		return nil, err
	}
	nextGC, err := s.metric(ctx, "go_memstats_next_gc_bytes")
	if err != nil {
		return nil, err
	}
	rows, err := rowsOf(ctx, s.agent.Store())
	if err != nil {
		return nil, err
	}
	list := []figure{
		// An older agent has run more of its program, and keeps room from its busiest moment; what it holds is the live
		// heap.
		{name: "RSS", value: rss, bytes: true, slack: 10e6},
		{name: "anonymous memory", value: anon, bytes: true, slack: 8e6},
		// The agent has the heap collected when half as much again is on it.
		{name: "live heap at the last collection", value: nextGC * 2 / 3, bytes: true, slack: 2e6},
		{name: "goroutines", value: goroutines, slack: 3},
		{name: "file descriptors", value: entries(fmt.Sprintf("/proc/%d/fd", pid)), slack: 3},
		// Go keeps the threads of its busiest moment for ever, and how busy that was is the machine's doing.
		{name: "threads", value: entries(fmt.Sprintf("/proc/%d/task", pid)), slack: 24},
		{name: "child processes", value: children(pid)},
		{name: "mounts", value: mounts(s.ctrd.Name, s.agent.Dir)},
		{name: "cgroups", value: cgroupsOf(s.ctrd.Name)},
		{name: "rows of the store", value: rows},
		{name: "store", value: fileSize(s.agent.Store()), bytes: true, slack: 64 << 10},
		{
			name:  "store with its log",
			value: fileSize(s.agent.Store()) + fileSize(s.agent.Store()+"-wal"),
			bytes: true,
			slack: 4200 << 10,
		},
		{name: "folders of pods", value: entries(filepath.Join(s.agent.Dir, "root", "pods"))},
		{name: "folders of logs", value: entries(s.agent.PodLogs())},
	}
	containers, err := s.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	sandboxes, err := s.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	return append(list, figure{name: "containers in the runtime", value: int64(len(containers.Containers))},
		figure{name: "sandboxes in the runtime", value: int64(len(sandboxes.Items))}), nil
}

// calmMemory leaves the agent alone, and returns the least memory that it had meanwhile: what a burst needed is given
// back little by little.
func (s *soaker) calmMemory(ctx context.Context, pid int) (rss, anon int64, err error) {
	rss, anon = math.MaxInt64, math.MaxInt64
	for end := time.Now().Add(s.settle); ; {
		r, a, err := process.Memory(pid)
		if err != nil {
			return 0, 0, err
		}
		rss, anon = min(rss, r), min(anon, a)
		if time.Now().After(end) {
			return rss, anon, nil
		}
		if !sleep(ctx, time.Second) {
			return 0, 0, ctx.Err()
		}
	}
}

// metric reads a number from the agent's metrics.
func (s *soaker) metric(ctx context.Context, name string) (int64, error) {
	text, err := s.agent.Get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return int64(f), err
		}
	}
	return 0, fmt.Errorf("the agent has no metric %s", name)
}

// rowsOf counts what the store holds: of static pods that are gone, nothing.
func rowsOf(ctx context.Context, file string) (n int64, err error) {
	db, err := sql.Open("sqlite3", "file:"+file+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "select (select count(*) from meta) + (select count(*) from outbox)").Scan(&n)
	return n, err
}

// entries counts what a folder holds; one that is not there holds nothing.
func entries(dir string) int64 {
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	return int64(len(list))
}

// children counts the processes that a process has not waited for.
func children(pid int) int64 {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	n := 0
	for _, f := range lists {
		if data, err := os.ReadFile(f); err == nil {
			n += len(strings.Fields(string(data)))
		}
	}
	return int64(n)
}

// mounts counts those that have a text of these in their line.
func mounts(texts ...string) int64 {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0
	}
	n := int64(0)
	for line := range strings.Lines(string(data)) {
		for _, text := range texts {
			if strings.Contains(line, text) {
				n++
				break
			}
		}
	}
	return n
}

// trees are the folders of a cgroup, one in each hierarchy.
func trees(name string) []string {
	list, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", name))
	if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", name)); err == nil {
		list = append(list, filepath.Join("/sys/fs/cgroup", name))
	}
	return list
}

func cgroupsOf(name string) int64 {
	n := int64(0)
	for _, dir := range trees(name) {
		_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				n++
			}
			return nil // one that has gone since is none
		})
	}
	return n
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
