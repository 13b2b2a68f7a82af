package configreload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
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
	// runs are the runtimes, by their sockets, that are there. asked counts how often one was asked.
	runs  atomic.Pointer[[]string]
	asked atomic.Int32
	end   func() // of the process
}

// newTrial starts an agent; it has reached the cloud with the copy "http://before" if connected says so.
func newTrial(t *testing.T, connected bool) *trialEnv {
	t.Helper()
	dir := t.TempDir()
	tr := &trialEnv{t: t, file: filepath.Join(dir, "edgecore.yaml")}
	tr.copies = configfile.CopiesOf(tr.file, filepath.Join(dir, "edgecore.db"))
	if err := tr.copies.Keep([]byte(tr.text("before", "")), configfile.Proof{Connected: connected}); err != nil {
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
		Runtime: func(_ context.Context, cfg *v1alpha2.EdgeCore) error {
			tr.asked.Add(1)
			endpoint := cfg.Modules.Edged.TailoredKubeletConfig.ContainerRuntimeEndpoint
			if list := tr.runs.Load(); list != nil && slices.Contains(*list, endpoint) {
				return nil
			}
			return errors.New("there is no runtime at " + endpoint)
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
			if got, _ := tr.copies.Refusals(); got != times+1 {
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

// runtimeAt is a change of the container runtime.
func runtimeAt(endpoint string) string {
	return "  edged: {tailoredKubeletConfig: {containerRuntimeEndpoint: \"" + endpoint + "\"}}\n"
}

const (
	oldRuntime = "unix:///run/old.sock"
	newRuntime = "unix:///run/new.sock"
)

// newRuntimeTrial starts an agent that is connected, has run pods with the previous runtime, and gets a configuration
// with another.
func newRuntimeTrial(t *testing.T, runs ...string) (tr *trialEnv, before, after string) {
	t.Helper()
	tr = newTrial(t, true)
	tr.link(true)
	before, after = tr.text("before", runtimeAt(oldRuntime)), tr.text("before", runtimeAt(newRuntime))
	if err := tr.copies.Keep([]byte(before), configfile.Proof{Connected: true, Ran: true}); err != nil {
		t.Fatal(err)
	}
	tr.runs.Store(&runs)
	tr.change(after)
	return tr, before, after
}

// TestVerdicts: what happens to a configuration, by what is on trial and what it has reached.
func TestVerdicts(t *testing.T) {
	const limit = 10 * time.Minute
	both := trial{limit: limit, link: true, runtime: true}
	link, runtime := trial{limit: limit, link: true}, trial{limit: limit, runtime: true}
	for name, c := range map[string]struct {
		trial   trial
		state   state
		elapsed time.Duration
		want    verdict
	}{
		"nothing on trial":                       {trial{}, state{cloud: true, pods: true}, 0, verdictKeep},
		"connected":                              {link, state{connected: true}, 0, verdictKeep},
		"connected, and no runtime":              {link, state{connected: true, pods: true}, limit, verdictKeep},
		"not yet connected":                      {link, state{}, limit - 1, verdictWait},
		"not connected":                          {link, state{runs: true}, limit, verdictLink},
		"runs":                                   {runtime, state{runs: true}, 0, verdictKeep},
		"runs, and no cloud":                     {runtime, state{runs: true, cloud: true}, limit, verdictKeep},
		"does not yet run":                       {runtime, state{before: true}, limit - 1, verdictWait},
		"does not run, the one before would":     {runtime, state{before: true}, limit, verdictRuntime},
		"does not run, nor would the one before": {runtime, state{}, 100 * limit, verdictWait},
		"both, connected":                        {both, state{connected: true}, limit - 1, verdictWait},
		"both, connected, does not run":          {both, state{connected: true, before: true}, limit, verdictRuntime},
		"both, runs, not connected":              {both, state{runs: true}, limit, verdictLink},
		"both, neither":                          {both, state{before: true}, limit, verdictRuntime},
		"both, neither, no runtime at all":       {both, state{}, limit, verdictLink},
		"both, connected, no runtime at all":     {both, state{connected: true}, limit, verdictWait},
		"both work":                              {both, state{connected: true, runs: true}, 0, verdictKeep},
	} {
		if got := verdictOf(c.trial, c.state, c.elapsed); got != c.want {
			t.Errorf("%s: verdict %d, want %d", name, got, c.want)
		}
	}
}

// TestWrongRuntime: an agent that could run pods, and cannot with a changed runtime, goes back, and does not try the
// file again by itself, whatever the cloud does: the previous runtime was there.
func TestWrongRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, before, after := newRuntimeTrial(t, oldRuntime)
		time.Sleep(10*time.Minute - time.Second)
		tr.want("shortly before the end", before, true, false)
		time.Sleep(3 * time.Second)
		tr.want("after the end", before, true, true)
		reason := tr.copies.Refused([]byte(after))
		for _, part := range []string{
			"within 10m0s", "configTrialSeconds", "no runtime at " + newRuntime, "correct the file, or touch it",
		} {
			if !strings.Contains(reason, part) {
				t.Errorf("the file is refused because of %q, want %q in it", reason, part)
			}
		}
		tr.restart()
		tr.link(false)
		tr.keeper.Refused(tr.parse(before))
		time.Sleep(48 * time.Hour)
		if err := tr.why(); err != nil || tr.copies.Refused([]byte(after)) == "" {
			t.Errorf("two days later: %v, refused because of %q; want the agent to stay with the copy", err,
				tr.copies.Refused([]byte(after)))
		}
	})
}

// TestRuntimeDown: while the previous runtime is not there either, the agent neither goes back nor keeps the file.
func TestRuntimeDown(t *testing.T) {
	for name, c := range map[string]struct {
		comes string
		back  bool
	}{"the new one comes": {newRuntime, false}, "only the old one comes": {oldRuntime, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, before, after := newRuntimeTrial(t)
				time.Sleep(48 * time.Hour)
				tr.want("two days without a runtime", before, true, false)
				tr.runs.Store(&[]string{c.comes})
				time.Sleep(time.Minute)
				if want := after; !c.back {
					tr.want(name, want, true, false)
				} else {
					tr.want(name, before, true, true)
				}
				if newest, _ := tr.copies.Newest(); !newest.Ran {
					t.Errorf("%s: the copy does not say that it has reached the runtime, want that", name)
				}
			})
		})
	}
}

// TestRuntimeNeverReached: a configuration is kept at once if no earlier one has reached the runtime. That it does is
// noted once, and the runtime is not asked any more.
func TestRuntimeNeverReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, true)
		tr.link(true)
		after := tr.text("before", runtimeAt(newRuntime))
		tr.change(after)
		tr.want("at once", after, true, false)
		time.Sleep(time.Hour)
		tr.want("an hour without a runtime", after, true, false)
		if newest, _ := tr.copies.Newest(); newest.Ran {
			t.Error("the copy has reached a runtime that is not there, want that it has not")
		}
		tr.runs.Store(&[]string{newRuntime})
		time.Sleep(time.Minute)
		if newest, _ := tr.copies.Newest(); !newest.Ran {
			t.Error("the copy has not reached the runtime, want that it has")
		}
		asked := tr.asked.Load()
		time.Sleep(time.Hour)
		if now := tr.asked.Load(); now != asked {
			t.Errorf("the runtime is asked %d times more, want not once it has answered", now-asked)
		}
	})
}

// TestTrialOverStarts: the time of a trial, and the pause until a refused file is tried again, count over all starts,
// also of a device that is switched off again at once.
func TestTrialOverStarts(t *testing.T) {
	for name, on := range map[string]time.Duration{"two minutes": 2 * time.Minute, "a second": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, before, after := newRuntimeTrial(t, oldRuntime)
				ends := func(what string, start func()) {
					for starts := 1; ; starts++ {
						time.Sleep(on)
						synctest.Wait()
						if tr.why() != nil {
							return
						}
						if starts == clockSteps && on < time.Minute {
							time.Sleep(time.Minute) // the last step lasts
						} else if starts > clockSteps {
							t.Fatalf("%s: it is not over after %d starts of %v", what, starts, on)
						} else {
							tr.restart()
							start()
						}
					}
				}
				ends("the trial", func() { tr.keeper.InForce(tr.parse(after), []byte(after), true) })
				tr.want("the trial", before, true, true)

				// The same for a cloud that is not reached with either.
				tr.restart()
				tr.link(false)
				moved := tr.text("moved", runtimeAt(oldRuntime))
				tr.change(moved)
				ends("the link", func() { tr.keeper.InForce(tr.parse(moved), []byte(moved), true) })
				tr.restart()
				tr.keeper.Refused(tr.parse(before))
				ends("the pause", func() { tr.keeper.Refused(tr.parse(before)) })
				if !errors.Is(tr.why(), ErrTryAgain) {
					t.Errorf("after the pause: %v, want the file to be tried again", tr.why())
				}
			})
		})
	}
}
