package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/local/adopt"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// ErrNothing says that there is no takeover to undo.
var ErrNothing = errors.New("this device was not migrated from KubeEdge: there is nothing to undo")

// Undo goes back to KubeEdge. It may be repeated until it has succeeded.
func (t *Migration) Undo(ctx context.Context) error {
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
	node := t.reboundNode(s)
	if err := t.clear(s); err != nil {
		return err
	}
	t.printf("Removed edgecore's configuration, certificates and store")
	if node != "" {
		t.printf("If cloudcore refuses KubeEdge's certificate (403), as edgecore has renewed it: kubectl label node "+
			"%s %s-",
			node, certs.HolderLabel)
	}
	return nil
}

// reboundNode returns the name of the node if edgecore's certificate names another holder than KubeEdge's: edgecore has
// renewed it since, and cloudcore may know the node by the new holder only. Otherwise it returns "".
func (t *Migration) reboundNode(s *state) string {
	text, err := os.ReadFile(s.From)
	if err != nil {
		return ""
	}
	cfg, err := adopt.Before(text)
	if err != nil {
		return ""
	}
	theirs, err := holderIn(adopt.CertFilesOf(cfg).Cert)
	if err != nil {
		return ""
	}
	// Without a certificate of edgecore's, an earlier undo was cut off after it had removed that.
	if ours, err := holderIn(t.certsFile()); err == nil && ours == theirs {
		return ""
	}
	return cfg.Modules.Edged.HostnameOverride
}

// holderIn returns the holder that the certificate in a file names; "" for none.
func holderIn(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	chain, err := certs.ParseCertsPEM(text)
	if err != nil {
		return "", err
	}
	return certs.HolderOf(chain[0]), nil
}

// stopOurs ends this agent, if it is it that has the service's name.
func (t *Migration) stopOurs(ctx context.Context, s *state) error {
	if t.Service.Present && t.replaced(s) {
		if err := t.Service.Systemctl(ctx, "stop", systemd.Name); err != nil {
			return fmt.Errorf("stop edgecore: %w; nothing was changed", err)
		}
		t.printf("Stopped edgecore; the pods run on")
	}
	return waitUnused(ctx, s.Store)
}

func (t *Migration) startTheirs(ctx context.Context, s *state) error {
	if err := t.Service.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	switch {
	case s.Unit == "":
		t.printf("KubeEdge had no unit here: start its agent the way it was started before")
	case !s.Active:
		t.printf("KubeEdge's %s is back; it did not run before, and is not started", systemd.Name)
	default:
		if err := t.Service.Systemctl(ctx, "start", systemd.Name); err != nil {
			return fmt.Errorf("start KubeEdge: %w", err)
		}
		t.printf("KubeEdge's %s runs again", systemd.Name)
	}
	return nil
}
