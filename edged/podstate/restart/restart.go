// Package restart decides what happens after a container has exited: whether it stays exited, is started again, or all
// containers of the pod restart. It is pure. Two packages use it, and so agree: runtime, which starts containers, and
// status, which computes a pod's phase.
//
// Source: "Individual container restart policy and rules" and "Restart All Containers" in the Kubernetes
// documentation of the pod lifecycle (KEP-753, KEP-5307, KEP-5532).
package restart

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Action is what follows from the end of a container.
type Action int

const (
	// Stay leaves the container as it ended.
	Stay Action = iota
	// Again starts it again, after its backoff.
	Again
	// All stops every container of the pod and starts the pod over, from its first init container.
	All
)

// IsSidecar reports whether an init container keeps running beside the containers.
func IsSidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Policy is the policy that applies to a container of a pod where none of its rules does: its own, or the pod's.
func Policy(pod *v1.Pod, c *v1.Container) v1.ContainerRestartPolicy {
	if c.RestartPolicy != nil && *c.RestartPolicy != "" {
		return *c.RestartPolicy
	}
	return v1.ContainerRestartPolicy(pod.Spec.RestartPolicy)
}

// After decides on a container that ended with an exit code. The first rule that matches decides, and otherwise the
// policy, under which an init container that is not a sidecar runs again only if it failed.
func After(pod *v1.Pod, c *v1.Container, exitCode int32) Action {
	for i := range c.RestartPolicyRules {
		if rule := &c.RestartPolicyRules[i]; matches(rule.ExitCodes, exitCode) {
			switch rule.Action {
			case v1.ContainerRestartRuleActionRestart:
				return Again
			case v1.ContainerRestartRuleActionRestartAllContainers:
				return All
			}
		}
	}
	policy := Policy(pod, c)
	switch {
	case policy == v1.ContainerRestartPolicyNever:
		return Stay
	case exitCode == 0 && (policy == v1.ContainerRestartPolicyOnFailure || isInit(pod, c) && !IsSidecar(c)):
		return Stay
	}
	return Again
}

func matches(when *v1.ContainerRestartRuleOnExitCodes, exitCode int32) bool {
	if when == nil {
		return false
	}
	switch in := slices.Contains(when.Values, exitCode); when.Operator {
	case v1.ContainerRestartRuleOnExitCodesOpIn:
		return in
	case v1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !in
	}
	return false
}

// isInit reports whether a container is one of the pod's init containers; names are unique in a pod.
func isInit(pod *v1.Pod, c *v1.Container) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name })
}
