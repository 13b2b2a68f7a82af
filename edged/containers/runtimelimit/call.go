package runtimelimit

import (
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
)

// Kind is a kind of call that is limited.
type Kind int

// The calls that start and end pods.
const (
	RunPodSandbox Kind = iota
	CreateContainer
	StartContainer
	StopContainer
	StopPodSandbox
	RemoveContainer
	RemovePodSandbox
	kinds
)

// phase is which limit applies to a call.
type phase int

const (
	starts phase = iota
	ends
	phases
)

// phase returns which limit applies to calls of a kind.
func (k Kind) phase() phase {
	if k <= StartContainer {
		return starts
	}
	return ends
}

// measures reports whether the duration of a call shows how busy the runtime is. The duration of StopContainer depends
// on the container.
func (k Kind) measures() bool { return k != StopContainer }

// sandbox reports whether a call starts or stops a sandbox. Such a call waits even if the pod's last call has just
// succeeded: many sandboxes that start or stop at once delay each other.
func (k Kind) sandbox() bool { return k == RunPodSandbox || k == StopPodSandbox }

// class says which other calls a call waits for.
type class int

const (
	// background calls wait until no other call waits or counts. After patience they are ordinary.
	background class = iota - 1
	// ordinary calls wait while the limit is reached.
	ordinary
	// critical calls wait while critical calls alone reach the limit.
	critical
	// urgent calls never wait.
	urgent
)

// Owner is the pod for which calls are made. The zero value is no pod; its calls come last.
type Owner struct {
	UID      types.UID
	class    class
	priority int32
	created  time.Time
}

// OwnerOf returns the owner of the calls for a pod. pod is nil if only its UID is known.
func OwnerOf(uid types.UID, pod *v1.Pod) Owner {
	o := Owner{UID: uid}
	if pod == nil {
		return o
	}
	o.created = pod.CreationTimestamp.Time
	if pod.Spec.Priority != nil {
		o.priority = *pod.Spec.Priority
	}
	if admission.Critical(pod) {
		o.class = critical
	}
	return o
}

// nobody is the owner of calls without one.
var nobody = Owner{priority: math.MinInt32}

// call is a call that waits, or that the runtime works on.
type call struct {
	kind  Kind
	owner Owner
	// number orders calls by arrival.
	number  uint64
	arrived time.Time
	// granted is when the runtime was called; zero while the call waits.
	granted time.Time
	// counted is set while the call counts towards the limit, which ends at until.
	counted bool
	until   time.Time
	// load is what queue.load was when the call was granted.
	load float64
	// ready is closed when the call is granted.
	ready chan struct{}
}

// before reports whether c is granted before other, a call of the same class.
func (c *call) before(other *call, now time.Time) bool {
	if a, b := c.impatient(now), other.impatient(now); a != b {
		return a
	} else if a {
		return c.number < other.number
	}
	if c.owner.priority != other.owner.priority {
		return c.owner.priority > other.owner.priority
	}
	if !c.owner.created.Equal(other.owner.created) {
		return c.owner.created.Before(other.owner.created)
	}
	return c.number < other.number
}

// classAt returns the class of a call that waits.
func (c *call) classAt(now time.Time) class {
	if c.owner.class == background && c.impatient(now) {
		return ordinary
	}
	return c.owner.class
}

// impatient reports whether a call has waited for so long that no other may overtake it.
func (c *call) impatient(now time.Time) bool { return now.Sub(c.arrived) >= patience }
