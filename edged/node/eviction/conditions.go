package eviction

import v1 "k8s.io/api/core/v1"

// NodeConditions returns the conditions of the Node that say what it is short of, in the kubelet's words.
func NodeConditions(kinds []v1.NodeConditionType) []v1.NodeCondition {
	var list []v1.NodeCondition
	for _, kind := range kinds {
		c := v1.NodeCondition{Type: kind, Status: v1.ConditionTrue}
		switch kind {
		case v1.NodeMemoryPressure:
			c.Reason, c.Message = "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"
		case v1.NodeDiskPressure:
			c.Reason, c.Message = "KubeletHasDiskPressure", "kubelet has disk pressure"
		case v1.NodePIDPressure:
			c.Reason, c.Message = "KubeletHasInsufficientPID", "kubelet has insufficient PID available"
		}
		list = append(list, c)
	}
	return list
}
