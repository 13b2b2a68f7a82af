// Package shutdown stops the pods in order when the device is shut down or rebooted: it delays the shutdown with an
// inhibitor lock of logind (systemd-inhibit(1), "delay"), and stops the pods group by group, those of the lowest
// priority first, each group within its time. Without logind or its bus, it tries again and sets a condition.
//
// It promises:
//
//   - The next group's turn comes when the one before has ended, or its time is over, and the device goes down when the
//     last one has. Time that a group does not need is not waited out.
//   - Logind waits as long as all groups may take: where its own limit is shorter that is raised, by a file of ours in
//     logind.conf.d. Where it cannot be raised, the groups share the time that logind allows.
//   - A shutdown that is called off lets the pods start again; see Options.Began.
package shutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	retryMin = time.Second
	retryMax = time.Minute
	// reloadWithin is how long logind may take to read its configuration again.
	reloadWithin = 5 * time.Second
	reloadLook   = 100 * time.Millisecond
	// confName is the name of our file in logind.conf.d.
	confName = "99-edgecore.conf"
	// ConfDir is that folder, which is gone after a boot as what the agent asks of logind is.
	ConfDir = "/run/systemd/logind.conf.d"
)

// ConfFile is our file in logind's configuration, as it lies on a device.
const ConfFile = ConfDir + "/" + confName

// Options configure a Watcher.
type Options struct {
	// Groups are the groups of pods, by rising priority.
	Groups []Group
	// Address is that of the D-Bus; empty is the system's.
	Address string
	// ConfDir is where logind's limit is raised; empty is the system's folder.
	ConfDir string
	// Pods lists the pods that have running containers.
	Pods func() []*v1.Pod
	// End ends a pod, and returns when nothing of it runs any more or ctx has ended. grace is what its containers have.
	End func(ctx context.Context, pod *v1.Pod, grace time.Duration)
	// Began is called with true when a shutdown has begun, before the first pod is stopped, and with false when it was
	// called off.
	Began func(bool)
	// Failed is called with why a shutdown would not be noticed; nil if it would.
	Failed func(error)
}

// Watcher waits for shutdowns.
type Watcher struct {
	opts Options
	// retryMin is the first delay before the bus is tried again, reloadWithin how long logind may take to read its
	// configuration again; tests shorten them.
	retryMin, reloadWithin time.Duration
	// began: a shutdown has begun, and was not called off as far as is known. It is Run's own.
	began bool
}

// New makes a watcher; Run starts it.
func New(opts Options) *Watcher {
	if opts.ConfDir == "" {
		opts.ConfDir = ConfDir
	}
	return &Watcher{opts: opts, retryMin: retryMin, reloadWithin: reloadWithin}
}

// Run waits for shutdowns until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if len(w.opts.Groups) == 0 {
		<-ctx.Done()
		return nil
	}
	for backoff := retry.NewBackoff(w.retryMin, retryMax); ; {
		began := time.Now()
		err := w.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		w.opts.Failed(err)
		if time.Since(began) > retryMax {
			backoff.Reset()
		}
		if !backoff.Wait(ctx) {
			return nil
		}
	}
}

// session watches over one connection to the bus, and returns why it ended.
func (w *Watcher) session(ctx context.Context) error {
	l, err := connect(ctx, w.opts.Address)
	if err != nil {
		return err
	}
	defer l.close()
	groups, err := w.groups(ctx, l)
	if err != nil {
		return err
	}
	signals, err := l.shutdowns()
	if err != nil {
		return err
	}
	lock, err := l.inhibit()
	if err != nil {
		return err
	}
	defer func() { lock.release() }()
	if err := w.catchUp(l); err != nil {
		return err
	}
	w.opts.Failed(nil)
	klog.InfoS("A shutdown of the device waits for the pods", "atMost", total(groups))
	for {
		select {
		case <-ctx.Done():
			return nil
		case begins, ok := <-signals:
			switch {
			case !ok:
				return errors.New("the connection to the system's D-Bus was lost")
			case begins:
				w.shutDown(ctx, groups)
				lock.release()
			default:
				klog.InfoS("The shutdown of the device was cancelled")
				lock.release()
				if lock, err = l.inhibit(); err != nil {
					return err
				}
				w.callOff()
			}
		}
	}
}

// catchUp learns whether a shutdown was called off while there was no connection to the bus: without that no pod would
// start again.
func (w *Watcher) catchUp(l *logind) error {
	if !w.began {
		return nil
	}
	preparing, err := l.preparing()
	if err != nil {
		return err
	}
	if !preparing {
		klog.InfoS("The shutdown of the device was cancelled while the system's D-Bus was down")
		w.callOff()
	}
	return nil
}

// callOff lets the pods start again.
func (w *Watcher) callOff() {
	w.began = false
	w.opts.Began(false)
}

// groups are the groups with the time that logind gives them.
func (w *Watcher) groups(ctx context.Context, l *logind) ([]Group, error) {
	want := total(w.opts.Groups)
	has, err := l.delay()
	if err != nil {
		return nil, err
	}
	if has >= want {
		return w.opts.Groups, nil
	}
	if err := w.raise(ctx, l, want); err != nil {
		klog.ErrorS(err, "logind's limit is shorter than shutdownGracePeriod; the pods share the shorter "+
			"time", "has", has, "want", want)
	}
	if has, err = l.delay(); err != nil {
		return nil, err
	}
	return fit(w.opts.Groups, has), nil
}

// raise raises logind's limit.
func (w *Watcher) raise(ctx context.Context, l *logind, want time.Duration) error {
	seconds := int64((want + time.Second - 1) / time.Second)
	text := fmt.Sprintf("# Written by edgecore: as long as its shutdownGracePeriod.\n[Login]\nInhibitDelayMaxSec=%d\n",
		seconds)
	if err := os.MkdirAll(w.opts.ConfDir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(w.opts.ConfDir, confName)
	if old, err := os.ReadFile(file); err != nil || string(old) != text {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := l.reload(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.reloadWithin)
	defer cancel()
	for {
		if has, err := l.delay(); err != nil || has >= want {
			return err
		}
		if !retry.Sleep(ctx, reloadLook) {
			return fmt.Errorf("logind has not applied InhibitDelayMaxSec=%d of %s", seconds, file)
		}
	}
}

// shutDown ends the pods, group by group.
func (w *Watcher) shutDown(ctx context.Context, groups []Group) {
	began := time.Now()
	w.began = true
	w.opts.Began(true)
	batches := Assign(groups, w.opts.Pods())
	for i, b := range batches {
		if len(b.Pods) == 0 {
			continue
		}
		klog.InfoS("The device is shutting down; terminating the "+
			"pods", "pods", len(b.Pods), "priorityFrom", groups[i].Priority,
			"within", b.Grace)
		w.endAll(ctx, b)
	}
	klog.InfoS("The pods have terminated; the device can shut down", "took", time.Since(began).Round(time.Millisecond))
}

// endAll ends pods side by side, and returns when all have ended or their time is over.
func (w *Watcher) endAll(ctx context.Context, b Batch) {
	ctx, cancel := context.WithTimeout(ctx, b.Grace)
	defer cancel()
	var wg sync.WaitGroup
	for _, pod := range b.Pods {
		wg.Go(func() { w.opts.End(ctx, pod, graceOf(pod, b.Grace)) })
	}
	wg.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		klog.InfoS("The grace period of a group of pods is over; not waiting for them", "pods", len(b.Pods),
			"had", b.Grace)
	}
}
