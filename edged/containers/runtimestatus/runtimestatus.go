// Package runtimestatus tracks what the container runtime reports about itself: its name and version, and its
// conditions RuntimeReady and NetworkReady.
//
// CRI has no event for a change of these conditions, for example when a CNI configuration is installed. So the runtime
// is asked at intervals, which are shorter while a condition does not hold.
package runtimestatus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// period is how often the runtime is asked. While it is not ready, it is asked after retryMin, and then at
	// intervals that double up to retryMax.
	period   = 15 * time.Second
	retryMin = time.Second
	retryMax = 5 * time.Second
)

// Runtime is the part of package runtime that is asked.
type Runtime interface {
	Learn(ctx context.Context) (runtime.Features, *runtimeapi.RuntimeStatus, error)
	Status(ctx context.Context) (*runtimeapi.RuntimeStatus, error)
}

// Options are what a Tracker needs.
type Options struct {
	Runtime Runtime
	// Answers says why the runtime does not answer; nil when it does. See package pleg.
	Answers func() error
	Health  *health.Registry
	// Version keeps the version over restarts of the module.
	Version *Version
	// Learned is called when the version and the features are known, Changed when a condition has changed, and
	// Recovered when a condition holds again.
	Learned, Changed, Recovered func()
}

// Version is the name and version of a runtime. The zero value is not known. Its methods may be called from any
// goroutine.
type Version struct {
	mu            sync.Mutex
	name, version string
}

// Get returns the name and version; both are empty if they are not known.
func (v *Version) Get() (name, version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.name, v.version
}

// Name returns the runtime's name; "" until it is known.
func (v *Version) Name() string {
	name, _ := v.Get()
	return name
}

func (v *Version) set(name, version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.name, v.version = name, version
}

// Tracker is what the runtime said last. Its methods may be called from any goroutine.
type Tracker struct {
	opts Options

	mu sync.Mutex
	// learned says that the features are known, since the runtime came back last. asked says that it has told its
	// conditions.
	learned, asked bool
	// runtime and network say why the runtime is not ready; "" that it is.
	runtime, network string
}

// New returns a Tracker that knows nothing yet.
func New(o Options) *Tracker { return &Tracker{opts: o} }

// Run asks the runtime until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	backoff := retry.NewBackoff(retryMin, retryMax)
	for {
		wait := period
		if t.Unready(false) != nil {
			wait = backoff.Next()
		} else {
			backoff.Reset()
		}
		if !retry.Sleep(ctx, wait) {
			return nil
		}
		if t.opts.Answers() != nil {
			continue // Learn is called when it answers again
		}
		t.mu.Lock()
		learned := t.learned
		t.mu.Unlock()
		if !learned {
			t.Learn(ctx)
		} else if status, err := t.opts.Runtime.Status(ctx); err == nil {
			t.set(status)
		}
	}
}

// Learn asks the runtime for its version, features and conditions. Run tries again if that fails.
func (t *Tracker) Learn(ctx context.Context) {
	t.mu.Lock()
	t.learned = false
	t.mu.Unlock()
	features, status, err := t.opts.Runtime.Learn(ctx)
	if err != nil {
		return
	}
	t.opts.Version.set(features.Name, features.Version)
	t.mu.Lock()
	t.learned = true
	t.mu.Unlock()
	t.set(status)
	t.opts.Learned()
}

// set records the conditions of the runtime.
func (t *Tracker) set(status *runtimeapi.RuntimeStatus) {
	broken := map[string]string{}
	for _, c := range status.GetConditions() {
		if !c.GetStatus() {
			broken[c.GetType()] = "reason:" + c.GetReason() + " message:" + c.GetMessage()
		}
	}
	why, network := broken[runtimeapi.RuntimeReady], broken[runtimeapi.NetworkReady]
	t.mu.Lock()
	recovered := t.network != "" && network == "" || t.runtime != "" && why == ""
	changed := !t.asked || t.network != network || t.runtime != why
	t.asked, t.runtime, t.network = true, why, network
	t.mu.Unlock()
	for code, detail := range map[health.Code]string{health.RuntimeNotReady: why, health.RuntimeNetwork: network} {
		if detail == "" {
			t.opts.Health.Clear(code, "")
		} else {
			t.opts.Health.Set(code, "", detail)
		}
	}
	if recovered {
		t.opts.Recovered()
	}
	if changed {
		t.opts.Changed()
	}
}

// Unready says why this node cannot run pods, in the kubelet's words; nil if it can.
func (t *Tracker) Unready(shuttingDown bool) error {
	t.mu.Lock()
	asked, why, network := t.asked, t.runtime, t.network
	t.mu.Unlock()
	return unready(t.opts.Answers(), asked, why, network, shuttingDown)
}

// errShuttingDown is why a node that shuts down takes no pods, in the kubelet's words.
var errShuttingDown = errors.New("node is shutting down")

// unready combines what keeps a node from running pods: a single cause as it is, several as "[a, b]". It is pure.
func unready(answers error, asked bool, runtime, network string, shuttingDown bool) error {
	var errs []error
	switch {
	case answers != nil:
		errs = append(errs, errors.New("container runtime is down"), fmt.Errorf("PLEG is not healthy: %w", answers))
	case !asked:
		errs = append(errs, errors.New("container runtime status check may not have completed yet"))
	default:
		if runtime != "" {
			errs = append(errs, fmt.Errorf("container runtime not ready: RuntimeReady=false %s", runtime))
		}
		if network != "" {
			errs = append(errs, networkError(network))
		}
	}
	if shuttingDown {
		errs = append(errs, errShuttingDown)
	}
	if all := utilerrors.NewAggregate(errs); all != nil {
		return all
	}
	return nil // not a nil Aggregate, which is an error that is not nil
}

func networkError(why string) error {
	return fmt.Errorf("container runtime network not ready: NetworkReady=false %s", why)
}

// NetworkFor returns an error if a pod cannot start because it needs a sandbox with an address and the runtime has no
// network. Pods that run, and pods on the node's network, need none.
func (t *Tracker) NetworkFor(pod *v1.Pod, obs *observed.Pod) error {
	if sandbox := obs.Sandbox(); pod.Spec.HostNetwork || sandbox != nil && sandbox.Ready {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.network != "" {
		return fmt.Errorf("network is not ready: %w", networkError(t.network))
	}
	return nil
}
