package configreload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// trialEnv is an agent whose configuration changes.
type trialEnv struct {
	t         *testing.T
	file      string
	copies    configfile.Copies
	keeper    *Keeper
	connected atomic.Pointer[time.Time] // since when; nil is not
	back      atomic.Pointer[error]
	end       func() // of the process
}

// newTrial starts an agent; it has reached the cloud with the copy "http://before" if connected says so.
func newTrial(t *testing.T, connected bool) *trialEnv {
	t.Helper()
	dir := t.TempDir()
	tr := &trialEnv{t: t, file: filepath.Join(dir, "edgecore.yaml")}
	tr.copies = configfile.CopiesOf(tr.file, filepath.Join(dir, "edgecore.db"))
	if err := tr.copies.Keep([]byte(tr.text("before", "")), connected); err != nil {
		t.Fatal(err)
	}
	tr.end = func() {}
	tr.restart()
	t.Cleanup(func() { tr.end() })
	return tr
}

// restart ends the agent's process, and begins the next one.
func (tr *trialEnv) restart() {
	tr.end()
	tr.back.Store(nil)
	ctx, cancel := context.WithCancel(context.Background())
	started := make(chan struct{})
	tr.keeper = NewKeeper(KeeperOptions{
		Copies: tr.copies, Started: started, GoBack: func(reason error) { tr.back.Store(&reason) },
		Connected: func() (time.Time, bool) {
			if since := tr.connected.Load(); since != nil {
				return *since, true
			}
			return time.Time{}, false
		},
	})
	end := tr.keeper.Start(ctx)
	close(started)
	tr.end = func() {
		cancel()
		end()
	}
}

func (tr *trialEnv) parse(text string) *v1alpha2.EdgeCore {
	tr.t.Helper()
	cfg, _, err := v1alpha2.Parse([]byte(text))
	if err != nil {
		tr.t.Fatal(err)
	}
	return cfg
}

func (tr *trialEnv) text(server, more string) string {
	return "apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\nmodules:\n  edgeHub: {websocket: {server: \"" +
		server + ":10000\"}}\n" + more
}

// change puts a file in force.
func (tr *trialEnv) change(text string) {
	tr.t.Helper()
	if err := os.WriteFile(tr.file, []byte(text), 0o600); err != nil {
		tr.t.Fatal(err)
	}
	tr.keeper.InForce(tr.parse(text), []byte(text), true)
	synctest.Wait()
}

// why returns why the process ends; nil if it does not.
func (tr *trialEnv) why() error {
	if reason := tr.back.Load(); reason != nil {
		return *reason
	}
	return nil
}

// link makes or cuts the link.
func (tr *trialEnv) link(up bool) {
	if now := time.Now(); up {
		tr.connected.Store(&now)
	} else {
		tr.connected.Store(nil)
	}
}

// want checks the newest copy, and whether the agent goes back.
func (tr *trialEnv) want(what, text string, connected, back bool) {
	tr.t.Helper()
	synctest.Wait()
	newest, ok := tr.copies.Newest()
	if !ok || string(newest.Data) != text || newest.Connected != connected {
		tr.t.Errorf("%s: the newest copy is %q, connected %v; want %q, %v", what, newest.Data, newest.Connected, text,
			connected)
	}
	if got := tr.why(); (got != nil) != back || back && !errors.Is(got, ErrGoBack) {
		tr.t.Errorf("%s: the agent goes back: %v, want %v", what, got, back)
	}
}

// TestGoesBack: an agent that has reached the cloud, and does not within the time with a changed link, goes back, and
// the file is refused.
func TestGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		before, after := tr.text("before", ""), tr.text("after", "")
		tr.change(after)
		time.Sleep(10*time.Minute - time.Second)
		tr.want("shortly before the end", before, true, false)
		tr.change(after) // is read again, which does not begin another trial
		time.Sleep(3 * time.Second)
		tr.want("after the end", before, true, true)
		if reason := tr.copies.Refused([]byte(after)); !strings.Contains(reason, "within 10m0s") {
			t.Errorf("the file is refused because of %q, want that the cloud was not reached", reason)
		}
	})
}

// TestTriedAgain: a device that does not reach the cloud with the copy either tries the refused file again, after
// longer and longer pauses: it was an outage, or the cloud has moved and is not there yet.
func TestTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		after := tr.text("after", "")
		for times, pause := range []time.Duration{10 * time.Minute, 20 * time.Minute, 40 * time.Minute} {
			if times == 0 {
				tr.change(after)
			} else { // the file is as it was
				tr.keeper.InForce(tr.parse(after), []byte(after), true)
			}
			time.Sleep(10*time.Minute + 3*time.Second)
			tr.want("the file", tr.text("before", ""), true, true)
			if got := tr.copies.Refusals(); got != times+1 {
				t.Errorf("the file was refused %d times, want %d", got, times+1)
			}
			tr.restart()
			tr.keeper.Refused(tr.parse(tr.text("before", "")))
			time.Sleep(pause - time.Second)
			synctest.Wait()
			if tr.why() != nil || tr.copies.Refused([]byte(after)) == "" {
				t.Errorf("the file is tried again before %v (%v)", pause, tr.why())
			}
			time.Sleep(4 * time.Second)
			synctest.Wait()
			if !errors.Is(tr.why(), ErrTryAgain) || tr.copies.Refused([]byte(after)) != "" {
				t.Errorf("after %v: %v, want the file to be tried again", pause, tr.why())
			}
			tr.restart()
		}
	})
}

// TestRefusedForGood: if the device reaches the cloud with the copy, the refused file was the cause.
func TestRefusedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		after := tr.text("after", "")
		tr.change(after)
		time.Sleep(11 * time.Minute)
		tr.want("the file", tr.text("before", ""), true, true)
		tr.restart()
		tr.keeper.Refused(tr.parse(tr.text("before", "")))
		time.Sleep(time.Minute)
		tr.link(true)
		time.Sleep(48 * time.Hour)
		tr.want("connected with the copy", tr.text("before", ""), true, false)
		if tr.copies.Refused([]byte(after)) == "" {
			t.Error("the file is not refused any more, want it refused")
		}
	})
}

// TestLinkOfBefore: a link that was made before the change does not end the trial.
func TestLinkOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		tr.link(true)
		time.Sleep(time.Second)
		tr.change(tr.text("after", ""))
		time.Sleep(time.Minute)
		tr.want("the link of before", tr.text("before", ""), true, false)
		tr.link(false)
		time.Sleep(10 * time.Minute)
		tr.want("the end", tr.text("before", ""), true, true)
	})
}

// TestPartly: a changed link that is applied, beside a key that needs a restart, is on trial, too, and is kept only as
// a whole.
func TestPartly(t *testing.T) {
	for name, reaches := range map[string]bool{"reaches the cloud": true, "does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTrial(t, true)
				text := tr.text("after", "  edged: {nodeLabels: {a: b}}\n")
				if err := os.WriteFile(tr.file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				tr.keeper.InForce(tr.parse(text), []byte(text), false)
				time.Sleep(time.Minute)
				if reaches {
					tr.link(true)
				}
				time.Sleep(10 * time.Minute)
				tr.want(name, tr.text("before", ""), true, !reaches)
			})
		})
	}
}

// TestReachesTheCloud: a changed link with which the agent reaches the cloud is kept from then on.
func TestReachesTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		after := tr.text("after", "")
		tr.change(after)
		time.Sleep(9 * time.Minute)
		tr.link(true)
		time.Sleep(3 * time.Second)
		tr.want("connected", after, true, false)
		tr.link(false)
		time.Sleep(time.Hour)
		tr.want("cut off later", after, true, false)
	})
}

// TestKeepsAtOnce: what does not concern the link is kept at once, and so is all while the agent has not reached the
// cloud, or with configTrialSeconds: 0.
func TestKeepsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		connected bool // with the copy
		text      func(*trialEnv) string
		reached   bool
	}{
		"another key": {true, func(tr *trialEnv) string {
			return tr.text("before", "  edged: {reportEvent: false}\n")
		}, true},
		"never connected": {false, func(tr *trialEnv) string { return tr.text("after", "") }, false},
		"no trial": {true, func(tr *trialEnv) string {
			return strings.Replace(tr.text("after", ""), "{websocket", "{configTrialSeconds: 0, websocket", 1)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTrial(t, c.connected)
				text := c.text(tr)
				tr.change(text)
				tr.want("at once", text, c.reached, false)
				time.Sleep(time.Hour)
				tr.want("later", text, c.reached, false)
				tr.link(true)
				time.Sleep(time.Minute)
				tr.want("connected", text, true, false)
			})
		})
	}
}

// TestNewerEndsTrial: a file that is corrected during its trial has a trial of its own.
func TestNewerEndsTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		tr.change(tr.text("typo", ""))
		time.Sleep(9 * time.Minute)
		tr.change(tr.text("before", ""))
		time.Sleep(time.Hour)
		tr.want("corrected", tr.text("before", ""), true, false)
	})
}

// TestNotStarted: nothing is kept before the agent has reached its running state.
func TestNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		copies := configfile.CopiesOf(filepath.Join(dir, "edgecore.yaml"), filepath.Join(dir, "edgecore.db"))
		started := make(chan struct{})
		k := NewKeeper(KeeperOptions{Copies: copies, Started: started})
		defer k.Start(t.Context())()
		k.InForce(v1alpha2.Default(), []byte("text"), true)
		synctest.Wait()
		if _, ok := copies.Newest(); ok {
			t.Error("there is a copy before the start, want none")
		}
		close(started)
		synctest.Wait()
		if newest, ok := copies.Newest(); !ok || string(newest.Data) != "text" {
			t.Errorf("newest copy %q, %v; want what the agent runs with", newest.Data, ok)
		}
	})
}
