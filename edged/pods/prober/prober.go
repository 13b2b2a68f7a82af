// Package prober runs the startup, readiness and liveness probes of containers, and returns their results as
// observed.Probes. It decides nothing about containers: the parts that stop, start or report them call Sync.
//
// # Promises
//
//   - A container is probed only while it was last seen running, and only by its own probes: what an earlier attempt of
//     the same name came to does not count for it.
//   - Startup probes go first; readiness and liveness begin when they have succeeded.
//   - A container that ran before the agent began starts from what its status said then, so that a restart of the agent
//     changes no status. Its first probe comes within one period, at a random time, so that not all come at once.
//   - A changed result is reported at once (Options.Changed).
//   - Each attempt runs by itself: a slow one delays no other. Between attempts a probe holds no goroutine, timer or
//     connection.
//   - While a pod ends its startup and liveness probes stay still, and its readiness probes go on.
package prober

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/clock"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// Options configure a Prober.
type Options struct {
	// Exec runs the commands of exec probes.
	Exec     Execer
	Recorder events.Interface
	// Changed is called for each pod whose probe results changed, with whether it is ending. It must not block.
	Changed func(uid types.UID, ending bool)
	// UserAgent is what HTTP and gRPC probes call themselves ("kube-probe/1.37").
	UserAgent string
}

// Prober probes containers. Its methods may be called from any goroutine.
type Prober struct {
	opts     Options
	attempts *attempts
	metrics  metrics
	began    time.Time

	mu    sync.Mutex
	pods  map[types.UID]*watches
	queue queue
	// wake tells Run that the first in the queue has changed.
	wake notify.Signal
}

// New makes a Prober. It probes while Run runs.
func New(opts Options) *Prober {
	return &Prober{
		opts:     opts,
		attempts: newAttempts(opts),
		metrics:  newMetrics(),
		began:    time.Now(),
		pods:     map[types.UID]*watches{},
		wake:     notify.NewSignal(),
	}
}

// watches are the containers of one pod that have probes and run, by name.
type watches struct {
	uid    types.UID
	byName map[string]*watch
	// namespace and name are the pod's, empty if Sync has never seen it.
	namespace, name string
	// ending: the pod is being stopped.
	ending bool
}

// watch is one running container that has probes.
type watch struct {
	target
	of        *watches
	id        string
	startedAt time.Time
	// restored: the container was there before the agent.
	restored bool
	probes   [kinds]*probe
}

// probe is one probe of a running container.
type probe struct {
	watch *watch
	kind  kind
	spec  *v1.Probe
	tally
	// early counts the attempts that came sooner than their period, see again.
	early int
	// due is when the next attempt is to begin; at is the place in the queue, -1 when it is not in it.
	due time.Time
	at  int
	// ended: the result is no longer needed.
	ended bool
	// cancel ends the attempt under way, nil when there is none.
	cancel context.CancelFunc
}

// View is what Sync has to know of a pod beside what its containers do.
type View struct {
	// Address is the pod's, or the node's where the pod is on the host's network.
	Address string
	// Before is the pod's previous status; what it says about running containers still holds.
	Before v1.PodStatus
}

// Sync probes those containers of a pod that were seen running, stops probing the others, and returns what is known.
func (p *Prober) Sync(pod *v1.Pod, obs *observed.Pod, view View) observed.Probes {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.watches(pod.UID)
	have.namespace, have.name = pod.Namespace, pod.Name
	before := have.byName
	have.byName = map[string]*watch{}
	out := observed.Probes{}
	for _, c := range probed(pod) {
		o := obs.Container(c.Name)
		if !o.Running() {
			continue
		}
		w := before[c.Name]
		if w == nil || w.id != o.ID {
			w = newWatch(c, o, &view.Before)
		}
		w.of, w.target = have, target{pod: pod, container: c, address: view.Address}
		have.byName[c.Name] = w
		for k, probe := range w.probes {
			if probe != nil {
				probe.spec = probeOf(c, kind(k))
			}
		}
		p.enqueueProbes(w)
		out[o.ID] = w.says()
	}
	for name, w := range before {
		if have.byName[name] != w {
			p.endAll(w)
		}
	}
	return out
}

func (p *Prober) watches(uid types.UID) *watches {
	have := p.pods[uid]
	if have == nil {
		have = &watches{uid: uid}
		p.pods[uid] = have
	}
	return have
}

// StopLivenessAndStartup stops the liveness and startup probes of a pod that is being stopped, until Forget. Readiness
// probes go on.
func (p *Prober) StopLivenessAndStartup(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.watches(uid)
	have.ending = true
	for _, w := range have.byName {
		for k, probe := range w.probes {
			if probe != nil && kind(k) != readiness {
				p.stopProbe(probe)
			}
		}
	}
}

// Forget stops probing a pod.
func (p *Prober) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.pods[uid]
	if have == nil {
		return
	}
	for _, w := range have.byName {
		p.endAll(w)
	}
	delete(p.pods, uid)
	p.forgetMetrics(have)
}

// probed are the containers of a pod that have probes: init containers only when they keep running.
func probed(pod *v1.Pod) []*v1.Container {
	var out []*v1.Container
	add := func(c *v1.Container) {
		if c.StartupProbe != nil || c.ReadinessProbe != nil || c.LivenessProbe != nil {
			out = append(out, c)
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if ptr.Deref(c.RestartPolicy, "") == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func probeOf(c *v1.Container, k kind) *v1.Probe {
	return [...]*v1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe}[k]
}

// newWatch begins with the previous status of the same container, if there is one.
func newWatch(c *v1.Container, o *observed.Container, before *v1.PodStatus) *watch {
	w := &watch{id: o.ID, startedAt: o.StartedAt}
	// Of the process the kernel knows the age, whichever way the clock was set since: no probe begins early because a
	// device that booted in 1970 has learnt the time.
	if age, err := clock.ProcessAge(o.PID); err == nil {
		w.startedAt = time.Now().Add(-age)
	}
	for k := range kinds {
		if spec := probeOf(c, k); spec != nil {
			w.probes[k] = &probe{watch: w, kind: k, spec: spec, at: -1}
		}
	}
	for _, list := range [][]v1.ContainerStatus{before.ContainerStatuses, before.InitContainerStatuses} {
		for _, s := range list {
			if s.Name != c.Name || !strings.HasSuffix(s.ContainerID, "://"+o.ID) || s.State.Running == nil {
				continue
			}
			w.restored = true
			if probe := w.probes[startup]; probe != nil && ptr.Deref(s.Started, false) {
				probe.verdict = success
			}
			if probe := w.probes[readiness]; probe != nil && s.Ready {
				probe.verdict = success
			}
		}
	}
	return w
}

// says is what the probes of a container have found.
func (w *watch) says() observed.Probed {
	verdict := func(k kind, without result) result {
		if w.probes[k] == nil {
			return without
		}
		return w.probes[k].verdict
	}
	out := observed.Probed{Started: verdict(startup, success) == success}
	out.Ready = out.Started && verdict(readiness, success) == success
	if w.of.ending {
		return out
	}
	for _, k := range [...]kind{liveness, startup} {
		if verdict(k, success) == failure {
			message := fmt.Sprintf("Container %s failed %s probe", w.container.Name, k.lower())
			if restart.Policy(w.pod, w.container) != v1.ContainerRestartPolicyNever {
				message += ", will be restarted"
			}
			out.Failed = &observed.ProbeFailure{Message: message, Grace: w.probes[k].spec.TerminationGracePeriodSeconds}
			break
		}
	}
	return out
}

// enqueueProbes queues those probes of a container that may run and are not queued yet.
func (p *Prober) enqueueProbes(w *watch) {
	started := w.probes[startup] == nil || w.probes[startup].verdict == success
	for k, probe := range w.probes {
		waits := kind(k) != startup && !started || kind(k) != readiness && w.of.ending
		if probe == nil || waits || probe.ended || probe.at >= 0 || probe.cancel != nil || probe.isOver(kind(k)) {
			continue
		}
		p.push(probe, time.Now().Add(probe.first(time.Now())))
	}
}

// A new container gets a moment before its first attempt: hardly one answers at once, and a failure would be noise.
// Readiness is for those who wait, and costs nothing but an event when it comes too soon.
const (
	recheckPeriod      = time.Second
	recheckReadyPeriod = 100 * time.Millisecond
)

// first is how long the first attempt waits.
func (r *probe) first(now time.Time) time.Duration {
	delay := min(recheckPeriod, period(r.spec)/2)
	if r.kind == readiness {
		delay = recheckReadyPeriod
	}
	delay = max(delay, time.Duration(r.spec.InitialDelaySeconds)*time.Second)
	if !r.watch.startedAt.IsZero() {
		// A clock that was set meanwhile makes no container younger than its start.
		delay = max(delay-max(now.Sub(r.watch.startedAt), 0), 0)
	}
	if r.watch.restored && (r.verdict == success || r.kind == liveness) {
		delay += rand.N(period(r.spec))
	}
	return delay
}

func period(spec *v1.Probe) time.Duration {
	if spec.PeriodSeconds > 0 {
		return time.Duration(spec.PeriodSeconds) * time.Second
	}
	return 10 * time.Second
}

// earlyFirst is how long after its first attempt a readiness probe is tried again.
const earlyFirst = 200 * time.Millisecond

// nextAttempt returns when the next attempt begins after one that was due at r.due and ended now. A container that was
// never ready is asked more often at first: it will most likely be ready soon, and others wait for it.
func (r *probe) nextAttempt(now, began time.Time) time.Time {
	every := period(r.spec)
	if r.kind == readiness && r.verdict != success && r.last != success && r.early >= 0 {
		if early := earlyFirst << r.early; early < every {
			r.early++
			return now.Add(early)
		}
	}
	r.early = -1
	next := r.due.Add(every)
	if next.Before(now) {
		next = now
	}
	if off := next.Sub(began) % beat; off > 0 {
		next = next.Add(beat - off)
	}
	return next
}

// beat is the grid of times, counted from the start of the prober, at which attempts begin that are not urgent: those
// that come near each other wake the process once, which for 100 probes a second is a third of what they cost.
const beat = 250 * time.Millisecond
