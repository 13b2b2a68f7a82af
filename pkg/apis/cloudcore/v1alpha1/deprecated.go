package v1alpha1

import "github.com/edgecore-io/edgecore/pkg/apis/strict"

// deprecatedKeys are keys that KubeEdge once had in this apiVersion, and that its v1.23 lacks. Old files are still
// accepted. Each has the path of the mapping that held it.
func deprecatedKeys() map[string][]string {
	return map[string][]string{
		"":                              {"leaderelection"},
		"modules":                       {"nodeUpgradeJobController"},
		"modules.edgeController":        {"context"},
		"modules.edgeController.buffer": {"serviceEvent", "endpointsEvent", "queryService", "queryEndpoints"},
		"modules.edgeController.load":   {"queryServiceWorkers", "queryEndpointsWorkers"},
		"modules.deviceController":      {"context"},
	}
}

// takeDeprecated removes the keys of older versions from the tree, and warns of those that are set.
func takeDeprecated(root map[string]any) strict.Problems {
	var warnings strict.Problems
	for _, path := range strict.SortedKeys(deprecatedKeys()) {
		parent, ok := strict.At(root, strict.Split(path)...).(map[string]any)
		if !ok {
			continue
		}
		for _, key := range deprecatedKeys()[path] {
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
