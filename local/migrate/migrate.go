// Package migrate carries out the plan of package adopt: it replaces KubeEdge's edgecore on a device by this agent, and
// can undo that. It owns the order of the steps and their journal.
//
// It promises:
//
//   - Nothing is changed before everything that can be checked was checked, and before the plan was shown.
//   - What belongs to KubeEdge is read, moved aside under a name beside its own, or stopped, and never written to: its
//     configuration, certificates, store and unit are the same bytes after Undo. The pods' folder is shared, as it was.
//   - At every moment a boot starts one of the two agents, and that one has all that it needs. The step between is the
//     replacement of the unit, which is one rename.
//   - Each step may be repeated: a takeover, or its undoing, that was killed or lost its power is taken up by the same
//     command. Until the replacement of the unit it starts again; from there on it goes on.
//   - A takeover that fails goes back by itself.
//
// The journal is a file in the folder "adopt" beside this agent's store, which also keeps this agent's earlier
// configuration; it is removed by Undo.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// Service is the agent as a service of systemd.
type Service struct {
	// Root is the folder below which units lie; / but for tests.
	Root string
	// Present reports whether systemd runs here.
	Present bool
	// Program is this executable.
	Program string
	// Packaged reports whether a package has brought a unit that starts Program with a configuration.
	Packaged func(config string) bool
	// Systemctl runs it with arguments.
	Systemctl func(ctx context.Context, args ...string) error
}

// Options say what is to be taken over, and where to.
type Options struct {
	// From is KubeEdge's configuration, Config and Store are this agent's.
	From, Config, Store string
	Service             Service
	// Force goes on although containers would be restarted, or pods ended.
	Force bool
	// Wait is how long this agent may take to show the pods that it took over.
	Wait time.Duration
	// Out receives a line for each step.
	Out io.Writer
}

// Migration is one of a device.
type Migration struct {
	Options
	journal journal
}

// New makes one; nothing is looked at yet.
func New(o Options) *Migration {
	return &Migration{Options: o, journal: journal{filepath.Join(filepath.Dir(o.Store), "adopt", "state.json")}}
}

// ErrDone says that the device was taken over before.
var ErrDone = errors.New("this device was taken over before: edgecore is its agent; `edgecore adopt --undo` goes " +
	"back to KubeEdge")

func (t *Migration) printf(format string, args ...any) { fmt.Fprintf(t.Out, format+"\n", args...) }

// certs is the folder of this agent's certificates.
func (t *Migration) certs() string { return filepath.Join(filepath.Dir(t.Config), "certs") }

// Resume takes up a takeover that was cut off after KubeEdge's unit was replaced; done reports whether there was one.
func (t *Migration) Resume(ctx context.Context) (done bool, err error) {
	s, err := t.journal.load()
	switch {
	case err != nil || s == nil:
		return false, err
	case s.Phase == settled:
		return true, ErrDone
	case s.Phase == undoing:
		return true, errors.New("an undo was interrupted: run `edgecore adopt --undo` to finish it")
	case s.Phase == preparing, !t.replaced(s):
		return false, nil // KubeEdge may have run since: all begins again
	}
	t.printf("Continuing the migration that was started at %s", s.At.Format(time.RFC3339))
	return true, t.finish(ctx, s, nil)
}

// Adopt takes the device over, or continues a takeover that was cut off. It prints the plan before it changes anything.
// The error is ErrDone if the device was taken over before.
func (t *Migration) Adopt(ctx context.Context) error {
	if done, err := t.Resume(ctx); done || err != nil {
		return err
	}
	p, err := t.Look(ctx)
	if err != nil {
		return err
	}
	t.Print(t.Out, p)
	return t.Do(ctx, p)
}

// Do carries out a plan.
func (t *Migration) Do(ctx context.Context, p *Plan) error {
	if err := p.Refused(t.Force); err != nil {
		return err
	}
	s, err := t.prepare(p)
	if err != nil {
		return errors.Join(fmt.Errorf("nothing was stopped: %w", err), t.back(ctx, s))
	}
	expected, err := t.fillStore(ctx, p, s)
	if err != nil {
		return errors.Join(err, t.back(ctx, s))
	}
	return t.finish(ctx, s, expected)
}

// prepare writes what this agent needs but its store, while KubeEdge runs.
func (t *Migration) prepare(p *Plan) (*state, error) {
	s := &state{
		Phase:    preparing,
		At:       time.Now().UTC().Truncate(time.Second),
		From:     t.From,
		Config:   t.Config,
		Store:    t.Store,
		Active:   p.unit.active,
		Unit:     p.unit.path,
		Links:    p.unit.links,
		Program:  p.unit.program,
		DropIns:  t.dropIns(),
		Endpoint: p.Config.Modules.Edged.TailoredKubeletConfig.ContainerRuntimeEndpoint,
	}
	if p.unit.path != "" {
		s.UnitSum = sum(p.unit.text)
	}
	before, err := t.journal.load()
	switch {
	case err != nil:
		return s, err
	case before != nil:
		// of a takeover that was cut off: KubeEdge may be stopped, and the files there may be of that one
		s.Active, s.Links, s.Before, s.BeforeMode, s.Made = s.Active || before.Active, before.Links, before.Before,
			before.BeforeMode, before.Made
	default:
		if err := s.keepConfig(); err != nil {
			return s, err
		}
		s.Made = t.ownFiles(p)
	}
	if err := t.journal.save(s); err != nil {
		return s, fmt.Errorf("journal: %w", err)
	}
	for _, f := range p.certs {
		if err := writeFile(f.to, f.data, 0o600); err != nil {
			return s, fmt.Errorf("certificates: %w", err)
		}
	}
	if err := writeFile(t.Config, p.Config.Text, 0o600); err != nil {
		return s, fmt.Errorf("configuration: %w", err)
	}
	t.printf("Wrote configuration %s and certificates %s", t.Config, t.certs())
	return s, nil
}

// fillStore stops KubeEdge's agent and makes this agent's store of its last state. It returns the containers that are
// to run on.
func (t *Migration) fillStore(ctx context.Context, p *Plan, s *state) ([]string, error) {
	if t.Service.Present && p.unit.path != "" {
		if err := t.Service.Systemctl(ctx, "stop", systemd.Name); err != nil {
			return nil, fmt.Errorf("stop KubeEdge: %w", err)
		}
		t.printf("Stopped KubeEdge's %s; the pods run on", systemd.Name)
	}
	if err := waitUnused(ctx, p.before.Database.DataSource); err != nil {
		return nil, err
	}
	last, err := t.Look(ctx) // what came since the plan was made
	if err != nil {
		return nil, err
	}
	if err := last.Refused(t.Force); err != nil {
		return nil, err
	}
	if err := makeStore(ctx, t.Store, last); err != nil {
		return nil, fmt.Errorf("store %s: %w", t.Store, err)
	}
	t.printf("Made store %s: %s", t.Store, last.Findings.Summary())
	s.Phase = switching
	if err := t.journal.save(s); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return last.running, nil
}

// finish replaces the unit, starts this agent and sees that it has the pods. Where that fails it goes back.
func (t *Migration) finish(ctx context.Context, s *state, expected []string) error {
	lost, err := t.takePlace(ctx, s, expected)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w; `edgecore adopt` continues, and `edgecore adopt --undo` undoes it", err)
		}
		t.printf("Going back to KubeEdge: %v", err)
		return errors.Join(fmt.Errorf("edgecore did not take over: %w", err), t.Undo(ctx))
	}
	s.Phase = settled
	if err := t.journal.save(s); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if len(lost) > 0 {
		return fmt.Errorf("edgecore has taken over, but these containers did not run on: %v; see `edgecore get pods`",
			lost)
	}
	return nil
}

func (t *Migration) takePlace(ctx context.Context, s *state, expected []string) (lost []string, err error) {
	if !t.Service.Present {
		t.printf("systemd does not run here; this runs the agent:\n  %s --config %s", t.Service.Program, t.Config)
		return nil, nil
	}
	if err := t.replace(s); err != nil {
		return nil, fmt.Errorf("unit: %w", err)
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", systemd.Name}, {"restart", systemd.Name}} {
		if err := t.Service.Systemctl(ctx, args...); err != nil {
			return nil, err
		}
	}
	if err := t.binaryAside(s); err != nil {
		return nil, err
	}
	return t.verify(ctx, s, expected)
}

// back undoes what was prepared, and starts KubeEdge's edgecore again.
func (t *Migration) back(ctx context.Context, s *state) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var err error
	if t.Service.Present && s.Unit != "" && s.Active {
		if err = t.Service.Systemctl(ctx, "start", systemd.Name); err == nil {
			t.printf("KubeEdge's %s runs again", systemd.Name)
		}
	}
	return errors.Join(err, t.clear(s))
}

// clear removes what was created for this agent, and restores its earlier configuration.
func (t *Migration) clear(s *state) error {
	var errs []error
	for _, name := range s.Made {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, name := range configfile.CopiesOf(t.Config, s.Store).Paths() {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, s.restoreConfig(), removeStore(s.Store))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what was made: %w", err)
	}
	for _, dir := range []string{filepath.Dir(t.certsFile()), filepath.Dir(t.Config)} {
		_ = os.Remove(dir) // if nothing of others is in it
	}
	return t.journal.remove()
}

func (t *Migration) certsFile() string { return filepath.Join(t.certs(), "server.crt") }
