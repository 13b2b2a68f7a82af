package eviction

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const cgroupMount = "/sys/fs/cgroup"

// group makes a cgroup with a limit of memory, and returns its folder and whether it is one of cgroup v1.
func group(t *testing.T, limit int64) (dir string, v1 bool) {
	t.Helper()
	name := "edgecore-test-notify-" + rand.Text()[:8]
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	v1 = err != nil
	file := "memory.max"
	dir = filepath.Join(cgroupMount, name)
	if v1 {
		dir, file = filepath.Join(cgroupMount, "memory", name), "memory.limit_in_bytes"
	} else if err := os.WriteFile(filepath.Join(cgroupMount, "cgroup.subtree_control"), []byte("+memory"),
		0); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A context of its own: the test's has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), wait.Max())
		defer cancel()
		if err := daemon.Poll(ctx, func() error { return os.Remove(dir) }); err != nil {
			t.Errorf("remove the cgroup: %v, want no error", err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		t.Fatal(err)
	}
	return dir, v1
}

// inGroup runs a shell script in a cgroup until the test ends.
func inGroup(t *testing.T, dir, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `echo $$ > "$0/cgroup.procs"; ` + script, dir}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		// The script's own children end when their pipe or file does.
		if err := cmd.Process.Kill(); err != nil {
			t.Log(err)
		}
		<-done
	})
}

// running runs a notifier, and returns where its news come.
func running(t *testing.T, o NotifierOptions) (*Notifier, <-chan struct{}) {
	t.Helper()
	news := make(chan struct{}, 100)
	o.Notify = func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	n := NewNotifier(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n, news
}

// armed waits until this process watches a file of a cgroup.
func armed(t *testing.T, dir string) {
	t.Helper()
	const own = "/proc/self/fd"
	wait.True(t, "this process to watch "+dir, func() bool {
		files, err := os.ReadDir(own)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(files, func(f os.DirEntry) bool {
			// One that was closed meanwhile leads nowhere.
			to, err := os.Readlink(filepath.Join(own, f.Name()))
			return err == nil && filepath.Dir(to) == dir
		})
	})
}

// TestHeadroomIsNoNews: that Headroom wakes the notifier is not taken for news of the kernel.
func TestHeadroomIsNoNews(t *testing.T) {
	control, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	own := &watch{fd: control, events: unix.POLLIN}
	defer own.close()
	n := NewNotifier(NotifierOptions{Notify: func() {
		t.Error("Notify was called without a report of the kernel, want no call")
	}})
	n.control = control
	for range 2 {
		n.Headroom(map[Signal]int64{Memory: 1})
		if err := n.wait(t.Context(), []*watch{own}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKernelSaysThatMemoryGetsShort: on cgroup v1 by a threshold on a cgroup's use, on v2 by its pressure. The script
// writes a file again and again that is larger than the cgroup, or, on v1, fills a variable.
func TestKernelSaysThatMemoryGetsShort(t *testing.T) {
	dir, v1 := group(t, 32<<20)
	o := NotifierOptions{Pressure: []string{filepath.Join(dir, "memory.pressure"), "/nowhere"}}
	if v1 {
		o = NotifierOptions{Memcg: map[Signal]string{AllocatableMemory: dir}}
	}
	n, news := running(t, o)
	n.Headroom(map[Signal]int64{AllocatableMemory: 8 << 20})
	armed(t, dir)
	if len(news) > 0 {
		t.Fatalf("%d notifications before anything has happened, want 0", len(news))
	}
	file := filepath.Join(t.TempDir(), "data")
	inGroup(t, dir,
		`while true; do dd if=/dev/zero of="$1" bs=1M count=64 conv=fsync 2>/dev/null; cat "$1" > /dev/null; done`,
		file)
	wait.Receive(t, "news of the full cgroup", news)
}

// TestSystemPressure: a kernel with PSI takes our trigger for the whole machine; one without it has us poll.
func TestSystemPressure(t *testing.T) {
	w, err := pressure(SystemPressure)
	if _, missing := os.Stat(SystemPressure); missing != nil {
		if err == nil {
			t.Errorf("pressure(%s), which does not exist, = nil, want an error", SystemPressure)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w.close()
}

// TestNotifierEnds: it ends with its context though nothing ever happens, and is told of headroom before and after its
// life.
func TestNotifierEnds(t *testing.T) {
	n := NewNotifier(NotifierOptions{Pressure: []string{"/nowhere"}, Memcg: map[Signal]string{Memory: "/nowhere"},
		Notify: func() { t.Error("Notify was called with nothing to watch, want no call") }})
	n.Headroom(map[Signal]int64{Memory: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	var told sync.WaitGroup
	for i := range 5 {
		told.Go(func() { n.Headroom(map[Signal]int64{Memory: int64(i)}) })
	}
	told.Wait()
	wait.True(t, "the notifier to run", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.control >= 0
	})
	cancel()
	if err := wait.Receive(t, "the notifier's end", ended); err != nil {
		t.Error(err)
	}
	n.Headroom(map[Signal]int64{Memory: 1})
}

func TestReadNumber(t *testing.T) {
	file := filepath.Join(t.TempDir(), "n")
	for text, want := range map[string]int64{"42\n": 42, "x": -1, "": -1} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readNumber(file)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("readNumber of %q = %d, %v; want %d", text, got, err, want)
		}
	}
}
