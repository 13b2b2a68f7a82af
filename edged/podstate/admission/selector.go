package admission

import v1 "k8s.io/api/core/v1"

// Selects reports whether a selector means a node with a name and these labels, which are all that it has. It is pure.
func Selects(name string, labels map[string]string, selector *v1.NodeSelector) bool {
	return anyTerm(name, selector.NodeSelectorTerms, func(key string) (value string, there, sure bool) {
		value, there = labels[key]
		return value, there, true
	}) == yes
}
