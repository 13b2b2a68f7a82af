package node

import (
	"encoding/json"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels are those that every node of ours has (docs/wire.md, Registration), and those of the configuration.
func Labels(name string, more map[string]string) map[string]string {
	all := map[string]string{
		v1.LabelHostname: name, v1.LabelOSStable: goruntime.GOOS, v1.LabelArchStable: goruntime.GOARCH,
		"beta.kubernetes.io/os": goruntime.GOOS, "beta.kubernetes.io/arch": goruntime.GOARCH,
		"node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": "",
	}
	maps.Copy(all, more)
	return all
}

// object is the Node to register.
func object(o *Options, status v1.NodeStatus) *v1.Node {
	n := &v1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: Labels(o.Name, o.Labels)},
		Spec:       v1.NodeSpec{Taints: taints(o), Unschedulable: !o.Schedulable},
		Status:     status,
	}
	if o.PodCIDR != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = o.PodCIDR, []string{o.PodCIDR}
	}
	return n
}

// taints are those that the Node is registered with. One that takes no pods has the taint that says so, too.
func taints(o *Options) []v1.Taint {
	own := v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
	if o.Schedulable || slices.ContainsFunc(o.Taints, func(t v1.Taint) bool { return t.MatchTaint(&own) }) {
		return o.Taints
	}
	return append(slices.Clone(o.Taints), own)
}

// missing returns the keys of wanted labels that are not there with their values, in order.
func missing(have, want map[string]string) []string {
	var keys []string
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if got, ok := have[k]; !ok || got != want[k] {
			keys = append(keys, k)
		}
	}
	return keys
}

// relabelled returns the Node with our labels on it, or nil where it has them. Labels of others stay.
func relabelled(have *v1.Node, want map[string]string) *v1.Node {
	if len(missing(have.Labels, want)) == 0 {
		return nil
	}
	n := have.DeepCopy()
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	maps.Copy(n.Labels, want)
	return n
}

// conditions returns the node's conditions, in the kubelet's words. unready is why the node cannot run pods, nil if it
// can. more are conditions that other parts have found; each replaces the default of its type.
func conditions(unready error, more, before []v1.NodeCondition, now metav1.Time) []v1.NodeCondition {
	ready := v1.NodeCondition{
		Type:    v1.NodeReady,
		Status:  v1.ConditionTrue,
		Reason:  "KubeletReady",
		Message: "kubelet is posting ready status",
	}
	if unready != nil {
		ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "KubeletNotReady", unready.Error()
	}
	all := []v1.NodeCondition{
		{
			Type:    v1.NodeMemoryPressure,
			Status:  v1.ConditionFalse,
			Reason:  "KubeletHasSufficientMemory",
			Message: "kubelet has sufficient memory available",
		},
		{
			Type:    v1.NodeDiskPressure,
			Status:  v1.ConditionFalse,
			Reason:  "KubeletHasNoDiskPressure",
			Message: "kubelet has no disk pressure",
		},
		{
			Type:    v1.NodePIDPressure,
			Status:  v1.ConditionFalse,
			Reason:  "KubeletHasSufficientPID",
			Message: "kubelet has sufficient PID available",
		},
		ready,
	}
	for _, c := range more {
		if i := indexOf(all, c.Type); i >= 0 {
			all[i] = c
		} else {
			all = append(all, c)
		}
	}
	for i := range all {
		all[i].LastHeartbeatTime, all[i].LastTransitionTime = now, now
		if k := indexOf(before, all[i].Type); k >= 0 && before[k].Status == all[i].Status {
			all[i].LastTransitionTime = before[k].LastTransitionTime
		}
	}
	return all
}

// indexOf finds a condition; -1 where it is not.
func indexOf(list []v1.NodeCondition, kind v1.NodeConditionType) int {
	return slices.IndexFunc(list, func(c v1.NodeCondition) bool { return c.Type == kind })
}

// changed reports whether a status differs in anything but its heartbeat times.
func changed(before, now *v1.NodeStatus) bool {
	if before == nil {
		return true
	}
	a, b := before.DeepCopy(), now.DeepCopy()
	for _, s := range []*v1.NodeStatus{a, b} {
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime, s.Conditions[i].LastTransitionTime = metav1.Time{}, metav1.Time{}
		}
	}
	return !equality.Semantic.DeepEqual(a, b)
}

// zeroForgotten adds the extended resources that the Node lists and the status does not, as 0: the scheduler binds no
// pod for a device that may not be there. They stay listed, as a node's own, until their plugins register again.
func zeroForgotten(status *v1.NodeStatus, listed v1.ResourceList) {
	for name := range listed {
		if _, ok := status.Capacity[name]; ok || !extended(name) {
			continue
		}
		for _, list := range []v1.ResourceList{status.Capacity, status.Allocatable} {
			if list != nil {
				list[name] = *resource.NewQuantity(0, resource.DecimalSI)
			}
		}
	}
}

// extended reports whether a resource is an extended one, as plugins and administrators name them.
func extended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// patch is the strategic merge patch that makes a status the Node's. Addresses have one key for several, so that
// they are replaced as a whole; conditions of others stay. Of listed, the resources that the Node lists, sizes of huge
// pages that the status does not have are removed.
func patch(status *v1.NodeStatus, listed v1.ResourceList) ([]byte, error) {
	text, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("encode node status: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if status.DaemonEndpoints.KubeletEndpoint.Port == 0 {
		delete(fields, "daemonEndpoints") // without a port of ours, a cloud's stream server sets it
	}
	for _, name := range [...]string{"volumesInUse", "images", "runtimeHandlers", "features", "declaredFeatures"} {
		if _, has := fields[name]; !has {
			fields[name] = nil // what is left out of a patch stays
		}
	}
	for name := range listed {
		if _, ok := status.Capacity[name]; ok || !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			continue
		}
		for _, field := range [...]string{"capacity", "allocatable"} {
			if list, ok := fields[field].(map[string]any); ok {
				list[string(name)] = nil
			}
		}
	}
	if list, ok := fields["addresses"].([]any); ok {
		fields["addresses"] = append(list, map[string]any{"$patch": "replace"})
	}
	return json.Marshal(map[string]any{"status": fields})
}

// stillSo is the patch for a status that the cloud has already: its conditions, with new heartbeat times. A controller
// that took the node for lost has changed them, too.
func stillSo(status *v1.NodeStatus) ([]byte, error) {
	return json.Marshal(map[string]any{"status": map[string]any{"conditions": status.Conditions}})
}
