package adopt

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var (
	long = flag.Bool("long", false, "kill the command at random moments, too, for some rounds")
	seed = flag.Uint64("seed", uint64(time.Now().UnixNano()),
		"the seed of the random moments at which the command is killed")
)

// rounds is how often the command is killed at random moments in each direction, with -long.
const rounds = 4

// TestKilled kills the command in each phase of its journal, in both directions, and at random moments with -long.
// The same command finishes what was begun; the containers run on all the while, and at the end KubeEdge's files are
// the same bytes.
func TestKilled(t *testing.T) {
	t.Parallel()
	d := newDevice(t, testenv.Options{})
	d.populate()
	env.Must(t, d.systemctl("start"))
	before, run := d.files(), d.containers()
	// completes runs a command, and checks what follows from it. done is the error of a command that has nothing to
	// do because it had ended before it was killed, "" where it must have something to do.
	completes := func(when, program, done string, args ...string) {
		t.Helper()
		output, err := d.edgecore(args...)
		if err != nil && (done == "" || !strings.Contains(output, done)) {
			t.Fatalf("%v %s: %v, want no error, or one that says %q\n%s", args, when, err, done, output)
		}
		d.runs(program)
		if diff := cmp.Diff(run, d.containers()); diff != "" {
			t.Fatalf("%v %s: containers mismatch (-want +got):\n%s", args, when, diff)
		}
	}
	restored := func() {
		t.Helper()
		if diff := cmp.Diff(before, d.files()); diff != "" {
			t.Fatalf("KubeEdge's files mismatch (-want +got):\n%s", diff)
		}
		if _, err := os.Stat(d.path("etc/edgecore")); err == nil {
			t.Fatal("edgecore's configuration is left, want it removed")
		}
	}

	adopt, undo := []string{"adopt"}, []string{"adopt", "--undo"}
	d.killedWhile("preparing", adopt, undo)
	completes("again, killed while preparing", built.Edge, "", adopt...)
	completes("of one killed while preparing", kubeEdgeProgram, "", undo...)
	restored()
	d.killedWhile("switching", adopt, undo)
	completes("again, killed while switching", built.Edge, "", adopt...)
	d.killedWhile("undoing", undo, adopt)
	completes("again, killed while undoing", kubeEdgeProgram, "", undo...)
	restored()
	if !*long {
		return
	}

	t.Logf("seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 0))
	most := [2]time.Duration{2 * time.Second, time.Second} // about as long as the command takes
	for range rounds {
		for way, args := range [][]string{adopt, undo} {
			after := time.Duration(random.Int64N(int64(most[way])))
			d.killed(func(<-chan struct{}) { time.Sleep(after) }, args...)
			completes(fmt.Sprintf("again, killed after %v", after), []string{built.Edge, kubeEdgeProgram}[way],
				[]string{"", "nothing to undo"}[way], args...)
		}
		restored()
	}
}

// phase returns the phase that the journal has, "" where there is no journal.
func (d *device) phase() (string, error) {
	text, err := os.ReadFile(d.path("var/lib/edgecore/adopt/state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var journal struct{ Phase string }
	err = json.Unmarshal(text, &journal)
	return journal.Phase, err
}

// attempts is how often killedWhile starts a command at most.
const attempts = 5

// killedWhile kills a command in a phase of its journal. Where the phase is over before the command is dead, it has
// the command back undo that, and tries again.
func (d *device) killedWhile(phase string, args, back []string) {
	d.t.Helper()
	for range attempts {
		output := d.killed(func(ended <-chan struct{}) {
			wait.Until(d.t, "the journal to say "+phase, func() error {
				select {
				case <-ended:
					return nil
				default:
				}
				got, err := d.phase()
				if err == nil && got != phase {
					err = fmt.Errorf("it says %q", got)
				}
				return err
			})
		}, args...)
		got, err := d.phase() // nobody writes it any more
		env.Must(d.t, err)
		if got == phase {
			return
		}
		d.t.Logf("%v was killed while %q, want while %s: it said\n%s", args, got, phase, output)
		if output, err := d.edgecore(back...); err != nil {
			d.t.Fatalf("%v after %v: %v, want no error\n%s", back, args, err, output)
		}
	}
	d.t.Fatalf("%v was killed while %s in 0 of %d attempts, want one", args, phase, attempts)
}

// killed starts a command, and kills it with what it has started when a wait returns. It returns what the command said.
func (d *device) killed(when func(ended <-chan struct{}), args ...string) (output string) {
	d.t.Helper()
	out, err := os.Create(filepath.Join(d.t.TempDir(), "out")) // no pipe, which others may hold open
	env.Must(d.t, err)
	defer out.Close()
	cmd := d.command(args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	env.Must(d.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	when(ended)
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		d.t.Errorf("kill of %v: %v, want nil or %v", cmd.Args, err, syscall.ESRCH)
	}
	wait.Closed(d.t, "the command to end", ended)
	text, err := os.ReadFile(out.Name())
	env.Must(d.t, err)
	return string(text)
}

// command is one of the program that takes over.
func (d *device) command(args ...string) *exec.Cmd {
	args = append(args,
		"--from", d.path("etc/kubeedge/config/edgecore.yaml"), "--config", d.path("etc/edgecore/edgecore.yaml"),
		"--store", d.path("var/lib/edgecore/edgecore.db"), "--root", d.root)
	cmd := exec.CommandContext(d.t.Context(), built.Edge, args...)
	cmd.Env = append(os.Environ(), "PATH="+d.path("bin")+":"+os.Getenv("PATH"))
	return cmd
}
