package adopt

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/podstate/adopted"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Facts are what is wanted on the device and what runs there.
type Facts struct {
	// Stored are the pods of the other agent's store that are for this node, with the status that they have there.
	Stored []*v1.Pod
	// Static are the pods of its manifests, with the UIDs that this agent makes.
	Static []*v1.Pod
	// Running is all that the runtime has of pods, in detail.
	Running []*observed.Pod
	// Images has, by the name in a spec, the names by which the runtime knows that image: its id, tags and digests.
	Images map[string][]string
}

// Findings are what a takeover does to the pods.
type Findings struct {
	// Record is what the agent has to remember.
	Record *adopted.Record
	// Pods is how many pods are wanted, Containers how many containers run on as they are.
	Pods, Containers int
	// Static is how many of the pods come from manifests.
	Static int
	// Lost are containers that this agent would restart, and pods that it would end.
	Lost []Loss
	// Idle are the desired pods without running containers; this agent starts them unless they have ended.
	Idle []string
}

// Loss is something that does not live through a takeover.
type Loss struct{ What, Why string }

func (l Loss) String() string { return l.What + ": " + l.Why }

// Match finds out which running containers belong to which pods, and what this agent would do to them, with the
// function by which the agent decides. It is pure.
func Match(f Facts, now time.Time) *Findings {
	m := &matching{Facts: f, out: &Findings{Record: &adopted.Record{
		Version:    adopted.Version,
		At:         now.UTC().Truncate(time.Second),
		Containers: map[string]adopted.Container{},
		Static:     map[types.UID]types.UID{},
	}}}
	m.out.Pods, m.out.Static = len(f.Stored)+len(f.Static), len(f.Static)
	running := map[types.UID]*observed.Pod{}
	for _, obs := range f.Running {
		running[obs.UID] = obs
	}
	taken := map[types.UID]bool{}
	for _, pod := range f.Stored {
		taken[pod.UID] = true
		m.pod(pod, running[pod.UID])
	}
	for _, pod := range f.Static {
		obs := m.runningBefore(pod)
		if obs == nil {
			m.pod(pod, nil)
			continue
		}
		taken[obs.UID] = true
		if obs.UID != pod.UID {
			m.out.Record.Static[pod.UID] = obs.UID
		}
		m.pod(pod, obs)
	}
	for _, obs := range f.Running {
		if !taken[obs.UID] && obs.Alive() {
			m.lose(obs.Namespace+"/"+obs.Name,
				"it runs, and neither the store nor a manifest has it; it would be ended")
		}
	}
	smallsort.SortFunc(m.out.Lost, func(a, b Loss) int { return cmp.Compare(a.What, b.What) })
	slices.Sort(m.out.Idle)
	return m.out
}

type matching struct {
	Facts
	out *Findings
}

func (m *matching) lose(what, why string) { m.out.Lost = append(m.out.Lost, Loss{what, why}) }

// runningBefore returns what the runtime has of a static pod: sandboxes with the pod's name that belong to no stored
// pod. Of several, those of manifests that were changed are on their way out: what runs stays, and of that the one with
// the youngest sandbox.
func (m *matching) runningBefore(pod *v1.Pod) *observed.Pod {
	var found *observed.Pod
	for _, obs := range m.Running {
		if obs.Name != pod.Name || obs.Namespace != pod.Namespace {
			continue
		}
		if slices.ContainsFunc(m.Stored, func(p *v1.Pod) bool { return p.UID == obs.UID }) {
			continue
		}
		switch {
		case found == nil, obs.Alive() && !found.Alive(),
			obs.Alive() == found.Alive() && sandboxCreatedAt(obs).After(sandboxCreatedAt(found)):
			found = obs
		}
	}
	return found
}

func sandboxCreatedAt(obs *observed.Pod) time.Time {
	if s := obs.Sandbox(); s != nil {
		return s.CreatedAt
	}
	return time.Time{}
}

// pod judges one wanted pod and what runs of it; obs may be nil.
func (m *matching) pod(pod *v1.Pod, obs *observed.Pod) {
	name := pod.Namespace + "/" + pod.Name
	if !obs.Alive() {
		m.out.Idle = append(m.out.Idle, name)
		return
	}
	if pod.DeletionTimestamp != nil || status.Terminal(pod.Status.Phase) {
		return // it is being ended, and goes on to be
	}
	known := *obs
	known.Containers = slices.Clone(obs.Containers)
	for i, c := range known.Containers {
		spec := specOf(pod, c.Name)
		if spec == nil || !c.Running() || c.Hash == runtime.Hash(spec) || !m.isMadeFrom(spec, c) {
			continue
		}
		m.out.Record.Containers[c.ID] = adopted.Container{
			Carries: adopted.FormatHash(c.Hash), Means: adopted.FormatHash(runtime.Hash(spec)),
		}
		same := *c
		same.Hash = runtime.Hash(spec)
		known.Containers[i] = &same
	}
	m.compare(name, &known, runtime.Decide(pod, &known, started(&known)))
}

// isMadeFrom reports whether a container was made from a spec: it carries the hash of the whole of it, or at least it
// is of that image; it has the name, and was running under an agent that restarts what differs.
func (m *matching) isMadeFrom(spec *v1.Container, c *observed.Container) bool {
	if c.Hash == SpecHash(spec) {
		return true
	}
	names := append([]string{spec.Image}, m.Images[spec.Image]...)
	return slices.ContainsFunc(names, func(n string) bool {
		return n != "" && (n == c.Image || n == c.ImageRef || n == c.ImageID)
	})
}

// compare notes what this agent would do to what runs.
func (m *matching) compare(name string, obs *observed.Pod, will runtime.Actions) {
	lost := map[string]bool{}
	for _, k := range will.Kill {
		lost[k.ID] = true
		m.lose(name+", container "+k.Name, k.Message)
	}
	switch {
	case will.KillPod:
		m.lose(name, "its sandbox is no longer usable; it would be recreated with all containers")
		return
	case will.StartOver:
		m.lose(name, "one of its containers has ended, and its rules start the pod over")
		return
	}
	for _, c := range obs.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING && !lost[c.ID] {
			m.out.Containers++
		}
	}
}

// started is what the probes of the other agent must have said of what runs: a container whose startup probe fails is
// not left running for long, and this agent asks its own probes before it acts.
func started(obs *observed.Pod) observed.Probes {
	p := observed.Probes{}
	for _, c := range obs.Containers {
		if c.Running() {
			p[c.ID] = observed.Probed{Started: true, Ready: true}
		}
	}
	return p
}

// specOf finds a container, init containers among them. Ephemeral containers are started once and never judged.
func specOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// Summary says in a line what happens to the pods.
func (f *Findings) Summary() string {
	return fmt.Sprintf("%d pods (%d of manifests), %d containers run on as they are", f.Pods, f.Static, f.Containers)
}
