package observed

import "maps"

// Probed is what the probes say of one running container.
type Probed struct {
	// Started: the container has no startup probe, or it has succeeded.
	Started bool
	// Ready: the container has no readiness probe, or its newest verdict is success.
	Ready bool
	// Failed says why the container has to be stopped: its startup or liveness probe has failed for good. nil: it has
	// not.
	Failed *ProbeFailure
}

// ProbeFailure is a startup or liveness probe that has failed as often as its threshold allows.
type ProbeFailure struct {
	// Message is that of the Killing event.
	Message string
	// Grace, in seconds, is the probe's own termination grace; nil: the pod's.
	Grace *int64
}

// Stopped returns what the probes say, but for one container, which has to be stopped for another reason.
func (p Probes) Stopped(id, message string) Probes {
	out := Probes{}
	maps.Copy(out, p)
	says, ok := out[id]
	if !ok {
		says = Probed{Started: true, Ready: true}
	}
	says.Failed = &ProbeFailure{Message: message}
	out[id] = says
	return out
}

// Probes maps the ids of running containers to what their probes say. A container without an entry has no probes.
type Probes map[string]Probed

// Of returns what the probes say of a container; one without probes is started and ready as soon as it runs, and
// one that does not run is neither.
func (p Probes) Of(c *Container) Probed {
	if !c.Running() {
		return Probed{}
	}
	if v, ok := p[c.ID]; ok {
		return v
	}
	return Probed{Started: true, Ready: true}
}
