package link

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/testenv/wrongconfig"
)

var (
	wrong = flag.Int("wrong", 4, "how many wrong configurations TestLink/Safe tries, besides a broker's port that is "+
		"taken; 0: all")
	wrongName = flag.String("wrong-name", "", "TestLink/Safe tries this wrong configuration only")
)

// longestPause is the longest time between a change and a kill that is to fall into what the change causes.
const longestPause = 1500 * time.Millisecond

// moment is when an agent is killed whose configuration changes.
type moment int

const (
	killedBefore  moment = iota // the file changes while no agent runs
	killedSoon                  // a moment after it changed
	killedInStart               // within the first start with it
	killedLater                 // when the Node says what is wrong
	moments
)

func (m moment) String() string {
	return [...]string{"before", "soon after", "within the start after", "long after"}[m]
}

// testSafe: whatever is written into the configuration of a device, whichever version its store is of, and whenever the
// agent is killed or the power is cut meanwhile: after the next start the agent is connected, its pods run, and its
// Node says why. No container is restarted where there was no cut.
func testSafe(t *testing.T, shared *env.Cluster) {
	random := rand.New(rand.NewPCG(*seed, 0))
	e := startEdge(t, shared, map[string]any{"configTrialSeconds": 4})
	e.apply(confAndKey, e.full("one"))
	e.Manifest("static", env.Pod("static", env.Forever))
	e.running("one")
	e.Running("static")
	s := &safe{edge: e, random: random, place: placeFor(t)}
	data, err := os.ReadFile(e.Config())
	env.Must(t, err)
	s.good = tokenInIt.ReplaceAllString(string(data), `token: ""`) // it has expired, long after the device has joined
	t.Logf("seed %d", *seed)
	for _, row := range chosen(random) {
		t.Run(row.Name, func(t *testing.T) { s.with(t).try(row) })
	}
	if *wrongName == "" {
		t.Run("an older agent on a newer store", func(t *testing.T) { s.with(t).older() })
	}
}

// with returns the same device for a subtest.
func (s *safe) with(t *testing.T) *safe {
	sub := *s
	sub.edge = s.edge.with(t)
	return &sub
}

var tokenInIt = regexp.MustCompile(`\btoken: .*`)

// chosen returns the changes that this run makes, in random order.
func chosen(random *rand.Rand) (rows []wrongconfig.Row) {
	all := wrongconfig.Rows(*seed)
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	some := 0
	for _, row := range all {
		always := row.Code == health.SocketFailing && strings.Contains(row.Says, "in use")
		switch {
		case row.Defaults || *wrongName != "" && row.Name != *wrongName: // for a machine of its own
			continue
		case *wrong > 0 && !always && some >= *wrong && *wrongName == "":
			continue
		case !always:
			some++
		}
		rows = append(rows, row)
	}
	return rows
}

// placeFor returns a place of this machine, with a port that is taken until the test ends.
func placeFor(t *testing.T) wrongconfig.Place {
	t.Helper()
	address, err := daemon.FreeAddress()
	env.Must(t, err)
	l, err := net.Listen("tcp", address)
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, l.Close()) })
	socket := filepath.Join(t.TempDir(), "other.sock")
	other, err := net.Listen("unix", socket) // what connects is never answered
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, other.Close()) })
	return wrongconfig.Place{Empty: t.TempDir(), Taken: address, Socket: socket}
}

// safe is a device whose configuration is changed.
type safe struct {
	*edge
	random *rand.Rand
	place  wrongconfig.Place
	good   string
}

// try makes a change, kills the agent or cuts the power at a random moment, and checks what the device does.
func (s *safe) try(row wrongconfig.Row) {
	t := s.T
	t.Helper()
	began := time.Now()
	m, pause, cut := moment(s.random.IntN(int(moments))), s.pause(), s.random.IntN(2) == 0
	what := fmt.Sprintf("%s, killed %s it (%v), power cut %v", row.Name, m, pause, cut)
	before := s.RunningContainers()
	defer func() {
		if t.Failed() { // the next change needs a device that works
			t.Logf("the end of the agent's log:\n%s", daemon.Tail(s.Log(), 60))
			s.correct(context.WithoutCancel(t.Context()))
		}
	}()
	if m != killedSoon {
		env.Must(t, s.Kill9(t.Context()))
	}
	s.change(row)
	switch m {
	case killedSoon:
		s.after(pause)
	case killedInStart:
		s.startFor(pause)
	case killedLater:
		env.Must(t, s.Start(t.Context()))
		s.says(what, row)
	}
	env.Must(t, s.Kill9(t.Context()))
	s.back(what, before, cut)
	s.says(what, row)
	s.validates(what, row)
	after := s.RunningContainers()
	s.correct(t.Context())
	s.says(what+", corrected", wrongconfig.Row{})
	s.unchanged(after, what+", corrected")
	t.Logf("%s: %v", what, time.Since(began).Round(100*time.Millisecond))
}

// correct restores the good file and starts the agent with it.
func (s *safe) correct(ctx context.Context) {
	t := s.T
	t.Helper()
	env.Must(t, s.Kill9(ctx))
	env.Must(t, os.RemoveAll(s.Config()))
	env.Must(t, writeFile(s.Config(), s.good))
	env.Must(t, s.Start(ctx))
}

// older makes the store one of a newer version, of which this one can read nothing.
func (s *safe) older() {
	t := s.T
	t.Helper()
	pause, cut := s.pause(), s.random.IntN(2) == 0
	what := fmt.Sprintf("an older agent on a newer store, killed after %v, power cut %v", pause, cut)
	before := s.RunningContainers()
	env.Must(t, s.Kill9(t.Context()))
	s.newerStore(true)
	s.startFor(pause)
	env.Must(t, s.Kill9(t.Context()))
	s.back(what, before, cut)
	s.cluster.NodeUntil(s.NodeName, what+", to say so", func(n *v1.Node) error {
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeConditionType(health.StoreRolledBack) {
				return nil // or that it is over: the cloud has sent everything
			}
		}
		return fmt.Errorf("its conditions are %+v", n.Status.Conditions)
	})
}

// back starts a killed agent, after a power cut or not, and waits until its pods run and it is connected.
func (s *safe) back(what string, before map[string]int64, cut bool) {
	t := s.T
	t.Helper()
	if cut {
		env.Must(t, s.Containerd.PowerOff(t.Context()))
		env.Must(t, s.Containerd.PowerOn(t.Context()))
		testenv.RemoveSandboxes(t, s.CRI) // with what they know of earlier cuts: pods are not restarted with a back-off
	}
	env.Must(t, s.Start(t.Context()))
	s.Until(what+", the pods to run", func(pods map[string]*v1.Pod) error {
		lives := s.RunningContainers()
		for _, p := range pods {
			if id := containerID(p); lives[id] == 0 {
				return fmt.Errorf("container %s of pod %s does not run", id, p.Name)
			}
		}
		if len(lives) != len(before) {
			return fmt.Errorf("%d containers run, want %d", len(lives), len(before))
		}
		return env.Running("one", "static")(pods)
	})
	if !cut {
		s.unchanged(before, what)
	}
	wait.Until(t, what+", the agent to be connected", func() error {
		text, err := s.Get(t.Context(), "/status")
		if err != nil {
			return err
		}
		var info struct {
			Link struct{ Connected bool } `json:"link"`
		}
		if err := json.Unmarshal([]byte(text), &info); err != nil || !info.Link.Connected {
			return fmt.Errorf("its status is %s: %v", text, err)
		}
		return nil
	})
	s.running("one")
}

// says waits until the Node says what is wrong, and nothing else of the configuration.
func (s *safe) says(what string, row wrongconfig.Row) {
	s.T.Helper()
	s.cluster.NodeUntil(s.NodeName, what+", to say what is wrong", func(n *v1.Node) error {
		for _, code := range []health.Code{
			health.ConfigurationBad, health.RestartNeeded, health.ModuleFailing, health.SocketFailing,
			health.ClientCABad, health.ServerStopped, health.ReadOnlyServerStopped,
		} {
			kind := v1.NodeConditionType(code)
			if code == row.Code {
				if err := env.NodeCondition(n, kind, v1.ConditionTrue, row.Says); err != nil {
					return err
				}
			} else if env.NodeCondition(n, kind, v1.ConditionTrue, "") == nil {
				return fmt.Errorf("it has %s: %+v", code, n.Status.Conditions)
			}
		}
		return env.Ready(n)
	})
}

// validates checks that config validate agrees with what the agent did.
func (s *safe) validates(what string, row wrongconfig.Row) {
	s.T.Helper()
	out, err := s.Run(s.T.Context(), "config", "validate")
	switch {
	case row.Code == "" && err != nil:
		s.T.Errorf("%s: config validate = %v, want that it is valid: %s", what, err, out)
	case row.Code == health.ConfigurationBad && (err == nil || !strings.Contains(out, row.Says)):
		s.T.Errorf("%s: config validate says %q, %v; want an error with %q", what, out, err, row.Says)
	}
}

// change makes the change of a row.
func (s *safe) change(row wrongconfig.Row) {
	t := s.T
	t.Helper()
	if row.Text != nil {
		text, err := row.Text(s.good, s.place)
		env.Must(t, err)
		env.Must(t, writeFile(s.Config(), text))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", row.Script)
	cmd.Env = append(os.Environ(), "CONFIG="+s.Config())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", row.Name, err, out)
	}
}

// startFor starts the agent for a while, whatever becomes of it.
func (s *safe) startFor(pause time.Duration) {
	ctx, cancel := context.WithTimeout(s.T.Context(), pause)
	defer cancel()
	_ = s.Start(ctx) // it is killed within its start, mostly
	<-ctx.Done()
}

// after lets time pass: the agent does something, and is killed at no particular moment of it.
func (s *safe) after(pause time.Duration) {
	select {
	case <-s.T.Context().Done():
	case <-time.After(pause):
	}
}

func (s *safe) pause() time.Duration {
	return time.Duration(s.random.Int64N(int64(longestPause))).Round(time.Millisecond)
}
