package env

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field returns a field of a pod by its path in the downward API. A label or annotation that the pod does
// not have is "".
func Field(pod *v1.Pod, path string, facts Facts) (string, error) {
	if name, key, ok := strings.Cut(path, "['"); ok && strings.HasSuffix(key, "']") {
		key = strings.TrimSuffix(key, "']")
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return mapText(pod.Labels), nil
	case "metadata.annotations":
		return mapText(pod.Annotations), nil
	case "spec.nodeName":
		return cmp.Or(pod.Spec.NodeName, facts.NodeName), nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP":
		return first(podIPs(pod, facts)), nil
	case "status.podIPs":
		return strings.Join(podIPs(pod, facts), ","), nil
	case "status.hostIP":
		return first(facts.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(facts.HostIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

// podIPs of a pod on the host network are the node's.
func podIPs(pod *v1.Pod, facts Facts) []string {
	if pod.Spec.HostNetwork {
		return facts.HostIPs
	}
	return facts.PodIPs
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// mapText writes a map as the downward API does: a line of key="value" each, sorted.
func mapText(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(lines, "\n")
}

// limitOf returns the default for a limit that a container does not have: the pod's own limit if there is one, else
// what the node can allocate.
func limitOf(pod *v1.Pod, name v1.ResourceName, allocatable v1.ResourceList) resource.Quantity {
	if pod.Spec.Resources != nil {
		if q, ok := pod.Spec.Resources.Limits[name]; ok {
			return q
		}
	}
	return allocatable[name]
}

// Resource returns a limit or request of a container of a pod, divided and rounded up. A limit of cpu, memory or
// ephemeral storage that is not set is the pod's or the node's; huge pages are not given to a container that does not
// ask for them.
func Resource(
	pod *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList,
) (string, error) {
	kind, name, ok := strings.Cut(ref.Resource, ".")
	resourceName, huge := v1.ResourceName(name), strings.HasPrefix(name, v1.ResourceHugePagesPrefix)
	var list v1.ResourceList
	switch kind {
	case "limits":
		list = c.Resources.Limits
	case "requests":
		list = c.Resources.Requests
	default:
		ok = false
	}
	supported := resourceName == v1.ResourceCPU || resourceName == v1.ResourceMemory ||
		resourceName == v1.ResourceEphemeralStorage || huge
	if !ok || !supported {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	q, set := list[resourceName]
	if kind == "limits" && !huge && (!set || q.IsZero()) {
		q = limitOf(pod, resourceName, allocatable)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if resourceName == v1.ResourceCPU {
		return ceilDiv(q.MilliValue(), divisor.MilliValue()), nil
	}
	return ceilDiv(q.Value(), divisor.Value()), nil
}

func ceilDiv(value, by int64) string {
	if by <= 0 {
		by = 1
	}
	n := value / by
	if value%by > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}
