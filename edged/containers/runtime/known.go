package runtime

import (
	"slices"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// sandboxKnown fills in the details of a sandbox from an earlier snapshot, and reports whether they are complete. The
// network and the process of a sandbox stay the same for as long as it is ready, and nothing changes after that.
func sandboxKnown(s *observed.Sandbox, known *observed.Pod) bool {
	if known == nil || !known.Detailed {
		return false
	}
	i := slices.IndexFunc(known.Sandboxes, func(k *observed.Sandbox) bool { return k.ID == s.ID })
	if i < 0 || known.Sandboxes[i].Ready != s.Ready {
		return false
	}
	k := known.Sandboxes[i]
	if s.Ready && (k.PID == 0 || !k.HostNetwork && len(k.IPs) == 0) {
		return false
	}
	s.HostNetwork, s.IPs, s.PID = k.HostNetwork, k.IPs, k.PID
	return true
}

// processKnown fills in the process of a running container from an earlier snapshot. The rest can change: the runtime
// may tell only after the exit that memory had run out.
func processKnown(c *observed.Container, known *observed.Pod) {
	if known == nil || !known.Detailed || !c.Running() {
		return
	}
	i := slices.IndexFunc(known.Containers, func(k *observed.Container) bool { return k.ID == c.ID })
	if i >= 0 && known.Containers[i].Running() {
		c.PID = known.Containers[i].PID
	}
}
