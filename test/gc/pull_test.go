package gc

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/images"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

// agent0 is the configuration of an agent that does not run, with a runtime that is not there.
func agent0(t *testing.T) (*agent.Agent, error) {
	t.Helper()
	return agent.New(agent.Options{Binary: binary.path, Dir: t.TempDir(), Endpoint: "unix:///run/nobody.sock", CgroupRoot: "/none"})
}

// TestPulls: a slow pull comes through however long it takes, and one that hangs is given up and comes through later. On both
// containerds, whose lists of what they fetch this reads.
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
	ctrd := testenv.StartContainerd(t, opts)
	client := testenv.Dial(t, ctrd)
	m := newMirror(t)
	// containerd tells of each MiB, and is held up now and then: both are far within the deadline.
	const deadline = 16 * time.Second
	puller := images.New(client.Images, images.Options{Meter: &imagegc.CRI{Client: client}, ProgressTimeout: deadline, ReportEvery: time.Second})

	slow := m.push(t, "slow", 5*mib)
	m.rate.Store(mib / 4)
	var mu sync.Mutex
	var told []images.Progress
	_, done, err := puller.Pull(t.Context(), slow, nil, func(p images.Progress) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, p)
	})
	if err != nil || done.Took <= deadline || done.Received < mib || done.Rate() > mib || len(told) < 3 || told[len(told)-1].Total < 5*mib {
		t.Errorf("slow pull: %v after %v: %v; it told %v", err, done.Took, done, told)
	}
	t.Logf("slow pull in %v: %v", done.Took.Round(time.Millisecond), done)

	hangs := m.push(t, "hangs", 4*mib)
	m.rate.Store(0)
	m.hangAfter.Store(mib)
	began := time.Now()
	_, done, err = puller.Pull(t.Context(), hangs, nil, nil)
	stalled, ok := errors.AsType[*images.StalledError](err)
	if !ok || time.Since(began) < deadline || !strings.Contains(err.Error(), "the pull was given up") {
		t.Fatalf("a pull that hangs ended after %v with %v", time.Since(began), err)
	}
	if stalled.Progress.Received == 0 || stalled.Progress.Received > 3*mib {
		t.Errorf("it hangs after 1 MiB, and %v", stalled.Progress)
	}
	t.Logf("given up after %v: %v", time.Since(began).Round(time.Millisecond), err)
	m.hangAfter.Store(0)
	if _, done, err = puller.Pull(t.Context(), hangs, nil, nil); err != nil {
		t.Errorf("it does not heal: %v, %v", err, done)
	}
}
