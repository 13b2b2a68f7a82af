package nodecert

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// A certificate is renewed between these shares of its lifetime, so that a fleet that joined on one day does not
	// renew on one day.
	renewFrom, renewTo = 0.7, 0.9
	// maxWait limits how long Rotate waits at a time: clocks jump, and devices sleep.
	maxWait = time.Hour
	// The delays after failures: KubeEdge's, but growing beyond its 32 s, since there are weeks left and each try costs
	// some kilobytes.
	minRetry, maxRetry = 2 * time.Second, 10 * time.Minute
)

// DefaultTokenFile is where KubeEdge's installer puts the token.
const DefaultTokenFile = "/etc/kubeedge/bootstrap-edgecore.conf"

// TokenFrom returns the token in a file if the file exists, else the configured one.
func TokenFrom(file, configured string) func() (string, error) {
	return func() (string, error) {
		data, err := os.ReadFile(file)
		switch {
		case os.IsNotExist(err):
			return configured, nil
		case err != nil:
			return "", err
		}
		return strings.TrimSpace(string(data)), nil
	}
}

// Await calls Ensure until it succeeds, with growing delays; each problem is reported. It fails only with the context's
// error.
func (k *Keeper) Await(ctx context.Context) error {
	for backoff := retry.NewBackoff(minRetry, maxRetry); ; {
		err := k.Ensure(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.opts.Report(err)
		if err == nil {
			return nil
		}
		if err := k.opts.Sleep(ctx, backoff.Next()); err != nil {
			return err
		}
	}
}

// Rotate renews the certificate when it is due, until ctx ends. After each renewal it calls renewed, to reconnect the
// link; existing connections continue meanwhile.
func (k *Keeper) Rotate(ctx context.Context, renewed func()) {
	share, backoff, ill := renewShare(), retry.NewBackoff(minRetry, maxRetry), false
	for ctx.Err() == nil {
		pause, changed, err := k.step(ctx, share)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			k.opts.Report(err)
			pause, ill = backoff.Next(), true
			klog.V(1).InfoS("Certificate not renewed", "node", k.opts.Node, "err", err, "again", pause)
		case changed:
			klog.InfoS("Certificate renewed", "node", k.opts.Node)
			renewed()
			share = renewShare()
			backoff.Reset()
		}
		if ill && err == nil {
			ill = false
			k.opts.Report(nil)
		}
		if k.opts.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// step does what is due now, and returns how long to wait then.
func (k *Keeper) step(ctx context.Context, share float64) (pause time.Duration, changed bool, _ error) {
	if err := k.Check(); err != nil {
		// Only a token helps now, and someone may have provided one.
		err = k.Ensure(ctx)
		return 0, err == nil, err
	}
	id, err := k.opts.Files.Load()
	if err != nil {
		return 0, false, problem(BadFiles, err, "the device's certificate cannot be read: %v", err)
	}
	if left := certs.RenewAt(id.Cert(), share).Sub(k.boundedNow()); left > 0 && k.renewal.Load() != renewRequested {
		return min(left, maxWait), false, nil
	}
	if err := k.renew(ctx, id); err != nil {
		return 0, true, err
	}
	became := int32(renewOnSchedule)
	if next, err := k.opts.Files.Load(); err == nil && next.CAs[0].Equal(id.CAs[0]) {
		became = renewFutile
	}
	k.renewal.CompareAndSwap(renewRequested, became)
	return 0, true, nil
}

// renew replaces the current certificate by a new one.
func (k *Keeper) renew(ctx context.Context, id *certs.Identity) error {
	return k.apply(ctx, nil, nil, id)
}

func renewShare() float64 { return renewFrom + (renewTo-renewFrom)*rand.Float64() }
