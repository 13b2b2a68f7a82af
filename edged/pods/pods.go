// Package pods makes the parts that do something with a pod, from its arrival to its end: it is taken in, admitted and
// synced by its worker, its probes run, and its status is made.
package pods

import (
	"github.com/edgecore-io/edgecore/edged/pods/deadline"
	"github.com/edgecore-io/edgecore/edged/pods/podstatus"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
)

// State is what outlives a run of the agent's module. The zero value is that of a module that has not run.
type State struct {
	// Results are those of the newest syncs.
	Results podstatus.Results
	// Deadlines are those of pods with activeDeadlineSeconds.
	Deadlines deadline.Tracker
	// Terminations wakes callers that wait for the end of a pod.
	Terminations termination.Waiters
	// Gate is closed while the device shuts down: nothing starts any more.
	Gate shutdown.Gate
}
