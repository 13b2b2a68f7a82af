package v1alpha1

import (
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// rows returns the rows of the table of keys, in its order.
func rows() []keytable.Key {
	t := &table{keytable.Table{Pass: keytable.ListKeys}}
	t.keys(&CloudCore{}, DefaultNodeLimit)
	return t.Keys
}

// live are the keys that this version acts on.
func live() map[string]bool { return keytable.UsedAs(rows(), restart) }

// LiveKeys returns the keys that this version acts on, in order.
func LiveKeys() []string { return strict.SortedKeys(live()) }

// deprecatedDefaults are the defaults of older KubeEdge versions: a file printed by one of them gets no warnings for
// these.
func deprecatedDefaults() map[string]string {
	return map[string]string{"modules.deviceController.buffer.deviceStatusEvent": "0"}
}

// notes explain keys that are not acted on because there is nothing to choose.
func notes() map[string]string {
	const always = "accepted, but this version always checks: a node may do what the name in its certificate may, " +
		"and no more"
	const notNeeded = "accepted and not needed: requests reach nodes through ports of cloudcore " +
		"(modules.cloudStream), without rules of iptables"
	return map[string]string{
		"modules.iptablesManager.enable":        notNeeded,
		"modules.iptablesManager.mode":          notNeeded,
		"modules.cloudHub.authorization.enable": always,
		"modules.cloudHub.authorization.debug":  always,
		"modules.cloudHub.authorization.modes":  always,
		"modules.syncController.enable": "accepted, but this version always sees to it that what was sent " +
			"arrives",
	}
}
