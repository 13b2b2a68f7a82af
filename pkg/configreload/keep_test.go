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

// trial is an agent whose configuration changes.
type trial struct {
	t         *testing.T
	file      string
	copies    configfile.Copies
	keeper    *Keeper
	connected atomic.Bool
	back      error
}

// newTrial starts an agent; it has reached the cloud with the copy "http://before" if connected says so.
func newTrial(t *testing.T, connected bool) *trial {
	t.Helper()
	dir := t.TempDir()
	tr := &trial{t: t, file: filepath.Join(dir, "edgecore.yaml")}
	tr.copies = configfile.CopiesOf(tr.file, filepath.Join(dir, "edgecore.db"))
	if err := tr.copies.Keep([]byte(tr.text("before", "")), connected); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	tr.keeper = NewKeeper(KeeperOptions{
		Copies: tr.copies, Started: started, Connected: tr.connected.Load,
		GoBack: func(reason error) { tr.back = reason },
	})
	end := tr.keeper.Start(ctx)
	close(started)
	t.Cleanup(func() {
		cancel()
		end()
	})
	return tr
}

func (tr *trial) text(server, more string) string {
	return "apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\nmodules:\n  edgeHub: {websocket: {server: \"" +
		server + ":10000\"}}\n" + more
}

// change puts a file in force.
func (tr *trial) change(text string) {
	tr.t.Helper()
	if err := os.WriteFile(tr.file, []byte(text), 0o600); err != nil {
		tr.t.Fatal(err)
	}
	cfg, _, err := v1alpha2.Parse([]byte(text))
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.keeper.InForce(cfg, []byte(text))
	synctest.Wait()
}

// want checks the newest copy, and whether the agent goes back.
func (tr *trial) want(what, text string, connected, back bool) {
	tr.t.Helper()
	synctest.Wait()
	newest, ok := tr.copies.Newest()
	if !ok || string(newest.Data) != text || newest.Connected != connected {
		tr.t.Errorf("%s: the newest copy is %q, connected %v; want %q, %v", what, newest.Data, newest.Connected, text,
			connected)
	}
	if (tr.back != nil) != back || back && !errors.Is(tr.back, ErrGoBack) {
		tr.t.Errorf("%s: the agent goes back: %v, want %v", what, tr.back, back)
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

// TestReachesTheCloud: a changed link with which the agent reaches the cloud is kept from then on.
func TestReachesTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		after := tr.text("after", "")
		tr.change(after)
		time.Sleep(9 * time.Minute)
		tr.connected.Store(true)
		time.Sleep(3 * time.Second)
		tr.want("connected", after, true, false)
		tr.connected.Store(false)
		time.Sleep(time.Hour)
		tr.want("cut off later", after, true, false)
	})
}

// TestKeepsAtOnce: what does not concern the link is kept at once, and so is all while the agent has not reached the
// cloud, or with configTrialSeconds: 0.
func TestKeepsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		connected bool // with the copy
		text      func(*trial) string
		reached   bool
	}{
		"another key": {true, func(tr *trial) string {
			return tr.text("before", "  edged: {reportEvent: false}\n")
		}, true},
		"never connected": {false, func(tr *trial) string { return tr.text("after", "") }, false},
		"no trial": {true, func(tr *trial) string {
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
				tr.connected.Store(true)
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
		k.InForce(v1alpha2.Default(), []byte("text"))
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
