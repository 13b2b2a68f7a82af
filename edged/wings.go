package edged

import "github.com/edgecore-io/edgecore/edged/podstate"

func (e *Edged) podstateOptions() podstate.Options {
	o := &e.opts
	return podstate.Options{
		State:    e.state.podstate,
		Bus:      o.Bus,
		Health:   o.Health,
		NodeName: o.NodeName,
		Events:   o.Events,
		Adopted:  o.Adopted,
		Cloud:    o.Node != nil,
		Linked:   o.Link != nil && o.Link().Connected,
		Busy:     e.busy,
	}
}

// busy reports whether pods start or end. What reports statuses and events asks it, and is made before the limiter of
// the runtime's calls, which knows it.
func (e *Edged) busy() bool { return e.limiter.Busy() }
