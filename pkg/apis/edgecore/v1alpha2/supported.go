package v1alpha2

import (
	"slices"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// rows returns the rows of the table of keys, in its order.
func rows() []key {
	t := &table{pass: listRows}
	t.keys(&EdgeCore{})
	return t.rows
}

// usedAs returns the keys with one of the uses.
func usedAs(uses ...use) map[string]bool {
	keys := map[string]bool{}
	for _, k := range rows() {
		if slices.Contains(uses, k.use) {
			keys[k.path] = true
		}
	}
	return keys
}

// live are the keys that this version acts on.
func live() map[string]bool { return usedAs(restart, reload) }

// LiveKeys returns the keys that this version acts on, in order.
func LiveKeys() []string { return strict.SortedKeys(live()) }

// reloadable are the keys whose change is taken over while the agent runs.
func reloadable() map[string]bool { return usedAs(reload) }

// ReloadableKeys returns the keys whose change is taken over while the agent runs, in order.
func ReloadableKeys() []string { return strict.SortedKeys(reloadable()) }

// deprecatedDefaults are the defaults of older KubeEdge versions: a file printed by one of them gets no warnings for
// these.
func deprecatedDefaults() map[string]string {
	return map[string]string{
		"modules.edged.podSandboxImage": "kubeedge/pause:3.1",
	}
}
