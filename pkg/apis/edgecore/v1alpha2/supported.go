package v1alpha2

import (
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// rows returns the rows of the table of keys, in its order.
func rows() []keytable.Key {
	t := &table{keytable.Table{Pass: keytable.ListKeys}}
	t.keys(&EdgeCore{})
	return t.Keys
}

// usedAs returns the keys with one of the uses.
func usedAs(uses ...keytable.Use) map[string]bool { return keytable.UsedAs(rows(), uses...) }

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
