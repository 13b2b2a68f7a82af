package v1alpha1

import "github.com/edgecore-io/edgecore/pkg/apis/strict"

// live are the keys that this version acts on. A part that supports another key adds it here; a test of cmd/cloudcore
// fails if one of these changes nothing. A listed mapping is live as a whole.
func live() map[string]bool {
	keys := map[string]bool{
		"apiVersion": true, "kind": true,
		"commonConfig.monitorServer": true, "kubeAPIConfig": true,
		"modules.edgeController.enable":           true, // to switch it off is refused
		"modules.deviceController.enable":         true,
		"modules.deviceController.statusInterval": true, "modules.deviceController.statusWritesPerNode": true,
	}
	for _, k := range []string{
		"enable", "tunnel", "address", "listenAddress", "tunnelPort", "firstPort", "lastPort", "streamsPerNode",
		"bytesPerSecondPerNode",
	} {
		keys["modules.cloudStream."+k] = true
	}
	for _, k := range []string{
		"enable", // to switch it off is refused
		"keepaliveInterval", "nodeLimit", "writeTimeout", "advertiseAddress", "dnsNames",
		"tlsCAFile", "tlsCAKeyFile", "tlsCertFile", "tlsPrivateKeyFile", "edgeCertSigningDuration",
		"tokenRefreshDuration", "legacyCertificates",
		"lookupsPerSource",
		"quic.enable", "quic.address", "quic.port", "websocket", "unixsocket", "https",
	} {
		keys["modules.cloudHub."+k] = true
	}
	return keys
}

// LiveKeys returns the keys that this version acts on, in order. Keys below them are live as well.
func LiveKeys() []string { return strict.SortedKeys(live()) }

// absent are the switches of modules that this version lacks. Switching one on, even if that is the default, gives a
// warning.
func absent() map[string]bool {
	keys := map[string]bool{}
	for _, m := range []string{"taskManager", "dynamicController", "router"} {
		keys["modules."+m+".enable"] = true
	}
	return keys
}

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
