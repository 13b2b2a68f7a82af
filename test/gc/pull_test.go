package gc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestPulls: the agent sees how far a pull is, a pull that hangs is given up, and what comes later completes it. On
// both containerds, whose lists of what they fetch this reads. When a pull is given up, and that a slow one is not, is
// shown on a simulated clock in edged/containers/images.
func TestPulls(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := leak.Find(before); err != nil {
			t.Error(err)
		}
	})
	for name, two := range map[string]bool{"containerd 1": false, "containerd 2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pulls(t, testenv.Options{NoImages: true, Containerd2: two})
		})
	}
}

func pulls(t *testing.T, opts testenv.Options) {
	client := testenv.Dial(t, testenv.StartContainerd(t, opts))
	m := newMirror(t)
	meter := &imagegc.CRI{Client: client}
	// The deadline is longer than any wait of the test. Each look at a pull is reported.
	patient := images.New(client.Images, images.Options{Meter: meter, ProgressTimeout: 2 * wait.Max(), ReportEvery: 1})

	// More comes only after the agent has reported what has come. containerd counts what comes in pieces of 1 MiB.
	const size = 5 * mib
	slow := m.push(t, "slow", size)
	m.serve(3 * mib / 2)
	type result struct {
		progress images.Progress
		err      error
	}
	var mu sync.Mutex
	var reports []images.Progress
	ended := make(chan result, 1)
	go func() {
		_, done, err := patient.Pull(t.Context(), slow, nil, func(p images.Progress) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, p)
		})
		ended <- result{done, err}
	}()
	reported := func() []images.Progress {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(reports)
	}
	received := int64(0)
	for _, step := range []struct{ seen, next int64 }{{1, 5 * mib / 2}, {2, 9 * mib / 2}, {4, 0}} {
		wait.Until(t, fmt.Sprintf("%d MiB of the slow pull", step.seen), func() error {
			fetches, err := meter.Fetches(t.Context())
			for _, f := range fetches {
				if f.Total >= size && f.Offset >= step.seen*mib {
					return err
				}
			}
			return fmt.Errorf("the runtime fetches %+v (%v), want a blob with %d bytes of at least %d",
				fetches, err, step.seen*mib, size)
		})
		wait.Until(t, fmt.Sprintf("a report of %d MiB", step.seen), func() error {
			all := reported()
			if len(all) == 0 {
				return errors.New("there is no report")
			}
			last := all[len(all)-1]
			if last.Received < step.seen*mib || last.Received <= received || last.Total < size {
				return fmt.Errorf("the last of %d is %v of %d, want at least %d, more than %d before, of at least %d",
					len(all),
					last.Received, last.Total, step.seen*mib, received, size)
			}
			received = last.Received
			return nil
		})
		m.serve(step.next)
	}
	if got := wait.Receive(t, "the slow pull's end", ended); got.err != nil || got.progress.Received < 4*mib {
		t.Errorf("slow pull: %v after %v, want no error and at least 4 MiB", got.err, got.progress)
	}
	all := reported()
	byReceived := func(a, b images.Progress) int { return cmp.Compare(a.Received, b.Received) }
	if len(all) < 3 || !slices.IsSortedFunc(all, byReceived) {
		t.Errorf("reports of the slow pull are %+v, want at least 3, none of them with less than the one before", all)
	}

	// An impatient puller may give up before anything has come; the runtime keeps what has.
	hangs := m.push(t, "hangs", 4*mib)
	m.serve(3 * mib / 2)
	impatient := images.New(client.Images, images.Options{Meter: meter, ProgressTimeout: time.Second})
	wait.Until(t, "a pull that hangs to be given up", func() error {
		_, _, err := impatient.Pull(t.Context(), hangs, nil, nil)
		stalled, ok := errors.AsType[*images.StalledError](err)
		if !ok || !strings.Contains(err.Error(), "the pull was cancelled") {
			t.Fatalf("a pull that hangs ended with %v, want a StalledError", err)
		}
		if got := stalled.Progress.Received; got < mib || got >= 4*mib {
			return fmt.Errorf("given up after %v, want 1 MiB or more, and not all", stalled.Progress)
		}
		return nil
	})
	m.serve(0)
	if _, done, err := patient.Pull(t.Context(), hangs, nil, nil); err != nil {
		t.Errorf("pull after the registry has healed: %v after %v, want no error", err, done)
	}
}
