package takeover

import (
	"context"
	"errors"
	"fmt"

	"github.com/edgecore-io/edgecore/deploy/systemd"
)

// ErrNothing says that there is no takeover to undo.
var ErrNothing = errors.New("this device was not taken over from KubeEdge: there is nothing to undo")

// Undo goes back to KubeEdge. It may be repeated until it has succeeded.
func (t *Takeover) Undo(ctx context.Context) error {
	s, err := t.journal.load()
	if err != nil {
		return err
	}
	if s == nil {
		return ErrNothing
	}
	t.Config, t.Store = s.Config, s.Store
	if s.Phase == preparing {
		return t.back(ctx, s)
	}
	s.Phase = undoing
	if err := t.journal.save(s); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := t.stopOurs(ctx, s); err != nil {
		return err
	}
	if err := t.restore(s); err != nil {
		return err
	}
	if err := t.binaryBack(s); err != nil {
		return err
	}
	if t.Service.Present {
		if err := t.startTheirs(ctx, s); err != nil {
			return err
		}
	}
	if err := t.clear(s); err != nil {
		return err
	}
	t.say("Removed edgecore's configuration, certificates and store")
	return nil
}

// stopOurs ends this agent, if it is it that has the service's name.
func (t *Takeover) stopOurs(ctx context.Context, s *state) error {
	if t.Service.Present && t.replaced(s) {
		if err := t.Service.Systemctl(ctx, "stop", systemd.Name); err != nil {
			return fmt.Errorf("stop edgecore: %w; nothing was changed", err)
		}
		t.say("Stopped edgecore; the pods run on")
	}
	return waitUnused(ctx, s.Store)
}

func (t *Takeover) startTheirs(ctx context.Context, s *state) error {
	if err := t.Service.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	switch {
	case s.Unit == "":
		t.say("KubeEdge had no unit here: start its agent the way it was started before")
	case !s.Active:
		t.say("KubeEdge's %s is back; it did not run before, and is not started", systemd.Name)
	default:
		if err := t.Service.Systemctl(ctx, "start", systemd.Name); err != nil {
			return fmt.Errorf("start KubeEdge: %w", err)
		}
		t.say("KubeEdge's %s runs again", systemd.Name)
	}
	return nil
}
