package v1alpha1

import "github.com/edgecore-io/edgecore/pkg/apis/strict"

// formerKeys are keys that KubeEdge had in this apiVersion at some time, and that its v1.23 does not have.
// Files of those days are still taken. Each has the path of the mapping that held it.
func formerKeys() map[string][]string {
	return map[string][]string{
		"":                              {"leaderelection"},
		"modules":                       {"nodeUpgradeJobController"},
		"modules.edgeController":        {"context"},
		"modules.edgeController.buffer": {"serviceEvent", "endpointsEvent", "queryService", "queryEndpoints"},
		"modules.edgeController.load":   {"queryServiceWorkers", "queryEndpointsWorkers"},
		"modules.deviceController":      {"context"},
	}
}

// takeFormer takes the keys of older versions out of the tree; those that say something are warned of.
func takeFormer(root map[string]any) strict.Problems {
	var warnings strict.Problems
	for _, path := range strict.SortedKeys(formerKeys()) {
		parent, ok := strict.At(root, strict.Split(path)...).(map[string]any)
		if !ok {
			continue
		}
		for _, key := range formerKeys()[path] {
			value, ok := parent[key]
			if !ok {
				continue
			}
			delete(parent, key)
			if value != nil {
				warnings = append(warnings, strict.Problem{Path: strict.Join(path, key), Text: strict.NotActedOn})
			}
		}
	}
	return warnings
}
