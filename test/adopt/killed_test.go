package adopt

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
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
	// again runs a command again that was killed, and checks what follows from it.
	again := func(when, program string, args ...string) {
		t.Helper()
		said, err := d.edgecore(args...)
		// A way back that had ended before it was killed leaves nothing to undo.
		if err != nil && !strings.Contains(said, "nothing to undo") && !strings.Contains(said, "taken over before") {
			t.Fatalf("%v killed %s: again: %v\n%s", args, when, err, said)
		}
		d.runs(program)
		if diff := cmp.Diff(run, d.containers()); diff != "" {
			t.Fatalf("%v killed %s: containers mismatch (-want +got):\n%s", args, when, diff)
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

	d.killed(d.reaches("preparing"), "adopt")
	d.killed(d.reaches("switching"), "adopt")
	again("while preparing, and while switching", built.Edge, "adopt")
	d.killed(d.reaches("undoing"), "adopt", "--undo")
	again("while undoing", kubeEdgeProgram, "adopt", "--undo")
	restored()
	if !*long {
		return
	}

	t.Logf("seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 0))
	most := [2]time.Duration{2 * time.Second, time.Second} // about as long as the command takes
	for range rounds {
		for way, args := range [][]string{{"adopt"}, {"adopt", "--undo"}} {
			after := time.Duration(random.Int64N(int64(most[way])))
			d.killed(func(<-chan struct{}) { time.Sleep(after) }, args...)
			again(fmt.Sprintf("after %v", after), []string{built.Edge, kubeEdgeProgram}[way], args...)
		}
		restored()
	}
}

// reaches returns a function that waits until the journal has a phase, or the command has ended.
func (d *device) reaches(phase string) func(ended <-chan struct{}) {
	return func(ended <-chan struct{}) {
		d.t.Helper()
		wait.Until(d.t, "the journal to say "+phase, func() error {
			select {
			case <-ended:
				return nil
			default:
			}
			journal, err := os.ReadFile(d.path("var/lib/edgecore/adopt/state.json"))
			if err == nil && !strings.Contains(string(journal), `"`+phase+`"`) {
				err = fmt.Errorf("it is %s", journal)
			}
			return err
		})
	}
}

// killed starts a command, and kills it with what it has started when a wait returns.
func (d *device) killed(when func(ended <-chan struct{}), args ...string) {
	d.t.Helper()
	cmd := d.command(args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	env.Must(d.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed, or fails when it is run again
	}()
	when(ended)
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		d.t.Error(err)
	}
	wait.Closed(d.t, "the command to end", ended)
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
