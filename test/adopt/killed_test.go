package adopt

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv"
)

// rounds is how often the command is killed there, and on the way back.
const rounds = 4

// TestKilled kills the command at random moments, there and on the way back. The same command finishes what was begun; the
// containers run on all the while, and at the end KubeEdge's files are the same bytes.
func TestKilled(t *testing.T) {
	t.Parallel()
	d := newDevice(t, testenv.Options{})
	d.populate()
	must(t, d.systemctl("start"))
	before, run := d.files(), d.containers()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	took := [2]time.Duration{2 * time.Second, time.Second}
	for i := range rounds {
		for way, args := range [][]string{{"adopt"}, {"adopt", "--undo"}} {
			after := time.Duration(random.Int64N(int64(took[way])))
			ended := d.killed(after, args...)
			began := time.Now()
			said, err := d.edgecore(args...)
			if err != nil && !(way == 1 && strings.Contains(said, "nothing to undo")) {
				t.Fatalf("round %d, %v killed after %v (had ended: %v): again: %v\n%s", i, args, after, ended, err, said)
			}
			took[way] = max(time.Since(began), 500*time.Millisecond)
			want := []string{binary.path, "usr/local/bin/edgecore"}[way]
			if got := d.program(); !strings.Contains(got, want) {
				t.Fatalf("round %d, %v killed after %v: %q runs, want %s", i, args, after, got, want)
			}
			if diff := cmp.Diff(run, d.containers()); diff != "" {
				t.Fatalf("round %d, %v killed after %v: containers:\n%s", i, args, after, diff)
			}
		}
		if diff := cmp.Diff(before, d.files()); diff != "" {
			t.Fatalf("round %d: KubeEdge's files:\n%s", i, diff)
		}
		if _, err := os.Stat(d.path("etc/edgecore")); err == nil {
			t.Fatalf("round %d: edgecore's configuration is left", i)
		}
	}
}

// killed runs a command and kills it, with what it has started, after a time; it tells whether it had ended before.
func (d *device) killed(after time.Duration, args ...string) (ended bool) {
	d.t.Helper()
	cmd := d.command(args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(d.t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
		return true
	case <-time.After(after):
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		d.t.Logf("kill: %v", err) // it has just ended
	}
	<-done
	return false
}

// command is one of the program that takes over.
func (d *device) command(args ...string) *exec.Cmd {
	args = append(args, "--from", d.path("etc/kubeedge/config/edgecore.yaml"), "--config", d.path("etc/edgecore/edgecore.yaml"), "--store", d.path("var/lib/edgecore/edgecore.db"), "--root", d.root)
	cmd := exec.CommandContext(d.t.Context(), binary.path, args...)
	cmd.Env = append(os.Environ(), "PATH="+d.path("bin")+":"+os.Getenv("PATH"))
	return cmd
}
