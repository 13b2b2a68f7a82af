package v1alpha1

import "github.com/edgecore-io/edgecore/pkg/apis/strict"

// live are the keys that this version acts on. A part that makes another one work adds it here, and a test of
// cmd/cloudcore fails when one of these changes nothing. A mapping that is named is live as a whole.
func live() map[string]bool {
	keys := map[string]bool{
		"apiVersion": true, "kind": true,
		"commonConfig.monitorServer": true, "kubeAPIConfig": true,
		"modules.edgeController.enable": true, // to switch it off is refused
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

// LiveKeys returns the keys that this version acts on, in order. Their own keys are live with them.
func LiveKeys() []string { return strict.SortedKeys(live()) }

// absent are the switches of the modules that this version does not have. To switch one on, even where that
// is the default, is worth a warning: what the file says is on is not.
func absent() map[string]bool {
	keys := map[string]bool{}
	for _, m := range []string{"deviceController", "taskManager", "dynamicController", "cloudStream", "router",
		"iptablesManager"} {
		keys["modules."+m+".enable"] = true
	}
	return keys
}

// formerDefaults are the defaults of older KubeEdge versions: a file printed by one of them asks for nothing.
func formerDefaults() map[string]string {
	return map[string]string{"modules.deviceController.buffer.deviceStatusEvent": "0"}
}

// notes say what becomes of keys that are not acted on because there is nothing to choose.
func notes() map[string]string {
	const always = "accepted, but this version always checks: a node may do what the name in its certificate may, " +
		"and no more"
	return map[string]string{
		"modules.cloudHub.authorization.enable": always,
		"modules.cloudHub.authorization.debug":  always,
		"modules.cloudHub.authorization.modes":  always,
		"modules.syncController.enable": "accepted, but this version always sees to it that what was sent " +
			"arrives",
	}
}
