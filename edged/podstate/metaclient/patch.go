package metaclient

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/jsonbound"
)

// The status of a pod travels as a strategic merge patch. It is to make the API server's status what this one is,
// whatever that was before, but for the conditions of others: so it says of each field of ours that is empty
// that it is (null), and of the lists that would be merged by address that they are replaced.

// owned are the fields of a pod's status that a node agent sets.
var owned = [...]string{
	"phase", "message", "reason", "hostIP", "hostIPs", "podIP", "podIPs", "startTime", "qosClass", "resources",
	"allocatedResources",
	"initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses",
}

// mergedByIP are the lists whose entries are merged by their address.
var mergedByIP = [...]string{"hostIPs", "podIPs"}

// replaceList is the entry by which a list is replaced rather than merged.
var replaceList = json.RawMessage(`{"$patch":"replace"}`)

// WritePatch is the form in which a pod's status is stored, and reported.
func WritePatch(uid types.UID, status v1.PodStatus) ([]byte, error) { return writePatch(uid, status) }

// ReadPatch reads such a form, or that of KubeEdge, which holds no more than what had changed.
func ReadPatch(text []byte) (types.UID, v1.PodStatus, error) { return readPatch(text) }

func writePatch(uid types.UID, status v1.PodStatus) ([]byte, error) {
	text, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for _, name := range owned {
		if _, ok := fields[name]; !ok {
			fields[name] = json.RawMessage("null")
		}
	}
	for _, name := range mergedByIP {
		var list []json.RawMessage
		if json.Unmarshal(fields[name], &list) == nil && list != nil {
			if fields[name], err = json.Marshal(append(list, replaceList)); err != nil {
				return nil, err
			}
		}
	}
	if status.Resources != nil {
		if fields["resources"], err = wholeResources(fields["resources"]); err != nil {
			return nil, err
		}
	}
	if len(status.AllocatedResources) > 0 { // without any the field is null, and goes as a whole
		if fields["allocatedResources"], err = wholeAmounts(fields["allocatedResources"]); err != nil {
			return nil, err
		}
	}
	if fields["conditions"], err = wholeConditions(status.Conditions); err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": fields})
}

// wholeResources are a pod's own resources, with an explicit null for every field that they do not have. A $patch
// directive cannot be used: the API server drops an object with a directive that it did not have before.
func wholeResources(resources json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(resources, &fields); err != nil {
		return nil, err
	}
	for _, name := range [...]string{"limits", "requests"} {
		amounts, ok := fields[name]
		if !ok {
			fields[name] = json.RawMessage("null")
			continue
		}
		whole, err := wholeAmounts(amounts)
		if err != nil {
			return nil, err
		}
		fields[name] = whole
	}
	return json.Marshal(fields)
}

// wholeAmounts are amounts with an explicit null for every pod-level resource that they do not have. They are a map:
// decoders take each key for a resource.
func wholeAmounts(amounts json.RawMessage) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(amounts, &fields); err != nil {
		return nil, err
	}
	for _, name := range [...]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if _, ok := fields[string(name)]; !ok {
			fields[string(name)] = json.RawMessage("null")
		}
	}
	return json.Marshal(fields)
}

// sometimes are the conditions that a node agent does not always have: where they are not, they are to go.
var sometimes = [...]v1.PodConditionType{v1.PodResizePending, v1.PodResizeInProgress}

// wholeConditions are conditions with their empty fields written out: conditions are merged by type, and omitted fields
// would keep their old values.
func wholeConditions(conditions []v1.PodCondition) (json.RawMessage, error) {
	out := make([]any, 0, len(conditions)+len(sometimes))
	for i := range conditions {
		text, err := json.Marshal(&conditions[i])
		if err != nil {
			return nil, err
		}
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(text, &fields); err != nil {
			return nil, err
		}
		for _, name := range [...]string{"reason", "message"} {
			if _, ok := fields[name]; !ok {
				fields[name] = json.RawMessage("null")
			}
		}
		out = append(out, fields)
	}
	for _, kind := range sometimes {
		if !slices.ContainsFunc(conditions, func(c v1.PodCondition) bool { return c.Type == kind }) {
			out = append(out, map[string]any{"$patch": "delete", "type": kind})
		}
	}
	return json.Marshal(out)
}

// maxElements bounds what a status takes in memory: that of 500 containers with ten mounts each has 50,000 elements.
const maxElements = 50_000

// readPatch reads a patch of ours, or one of KubeEdge's.
func readPatch(text []byte) (types.UID, v1.PodStatus, error) {
	if jsonbound.HasMore(text, maxElements) {
		return "", v1.PodStatus{}, fmt.Errorf("the status of a pod has more than %d elements", maxElements)
	}
	var p struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Status v1.PodStatus `json:"status"`
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return "", v1.PodStatus{}, err
	}
	p.Status.PodIPs = slices.DeleteFunc(p.Status.PodIPs, func(ip v1.PodIP) bool { return ip.IP == "" })
	p.Status.HostIPs = slices.DeleteFunc(p.Status.HostIPs, func(ip v1.HostIP) bool { return ip.IP == "" })
	// to go
	p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Status == "" })
	null := func(_ v1.ResourceName, q resource.Quantity) bool { return q.Format == "" }
	maps.DeleteFunc(p.Status.AllocatedResources, null)
	if r := p.Status.Resources; r != nil {
		maps.DeleteFunc(r.Limits, null)
		maps.DeleteFunc(r.Requests, null)
	}
	return p.Metadata.UID, p.Status, nil
}
