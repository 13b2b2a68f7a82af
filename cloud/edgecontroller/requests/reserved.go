package requests

import (
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// What only cloudcores may write in a Node: InstanceAnnotation and the condition DuplicateDevice. They would be
// worthless if the node could change them. This file enforces that on what nodes send.

// dropReserved removes what only cloudcores write from a Node that registers.
func dropReserved(node *v1.Node) {
	delete(node.Annotations, marks.InstanceAnnotation)
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == marks.DuplicateDevice
	})
}

// mergeNodeConditions merges all conditions that a node reports into a Node's; conditions of others stay.
func mergeNodeConditions(have, reported []v1.NodeCondition) []v1.NodeCondition {
	var out []v1.NodeCondition
	for _, c := range have {
		own := slices.ContainsFunc(reported, func(t v1.NodeCondition) bool { return t.Type == c.Type })
		if c.Type == marks.DuplicateDevice || !own {
			out = append(out, c)
		}
	}
	for _, c := range reported {
		if c.Type != marks.DuplicateDevice {
			out = append(out, c)
		}
	}
	return out
}

// jsonObject holds the members of an object in a patch.
type jsonObject map[string]json.RawMessage

// checkReserved returns an error (403) for a strategic merge patch of a Node that would change what only cloudcores
// write, or all annotations or conditions regardless of their writer.
func checkReserved(r *request, patch jsonObject) error {
	metadata, ok := member(patch, "metadata")
	if !ok {
		return forbidden(r.key, "a node may not replace the metadata of its Node")
	}
	annotations, ok := member(metadata, "annotations")
	if _, has := annotations[marks.InstanceAnnotation]; has || !ok {
		return forbidden(r.key, "a node may not change the annotation %s, nor replace all annotations",
			marks.InstanceAnnotation)
	}
	status, ok := member(patch, "status")
	if !ok || hasDirective(patch) {
		return forbidden(r.key, "a node may not replace the status of its Node as a whole")
	}
	if raw, has := status["conditions"]; has && !leavesCondition(raw) {
		return forbidden(r.key, "a node may not change the condition %s, nor replace all conditions",
			marks.DuplicateDevice)
	}
	return nil
}

// member returns a member that is an object; ok is false if it is null, not an object, or replaced or deleted as a
// whole.
func member(of jsonObject, name string) (value jsonObject, ok bool) {
	raw, has := of[name]
	if !has {
		return nil, true
	}
	if err := json.Unmarshal(raw, &value); err != nil || value == nil || hasDirective(value) {
		return nil, false
	}
	return value, true
}

// hasDirective reports whether a part of a patch contains a merge directive.
func hasDirective(part jsonObject) bool {
	for _, name := range []string{"$patch", "$retainKeys"} {
		if _, has := part[name]; has {
			return true
		}
	}
	return false
}

// leavesCondition reports whether a patch of a Node's conditions does not touch DuplicateDevice.
func leavesCondition(raw json.RawMessage) bool {
	var list []jsonObject
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return false
	}
	for _, c := range list {
		var kind v1.NodeConditionType
		if err := json.Unmarshal(c["type"], &kind); err != nil || kind == marks.DuplicateDevice {
			return false // without a type it replaces the list
		}
	}
	return true
}
