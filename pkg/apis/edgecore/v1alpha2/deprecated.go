package v1alpha2

import (
	"encoding/json"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// deprecatedEdged are keys of modules.edged that KubeEdge had in this apiVersion since 1.12, and that its v1.23 lacks
// or has elsewhere. Old files are still accepted.
func deprecatedEdged() []string {
	return []string{
		"bandwidthManager", "certDirectory", "cniBinDir", "cniCacheDir", "cniConfDir", "containerRuntime",
		"dockerEndpoint", "dockershimRootDirectory",
		"exitOnLockContention", "experimentalCheckNodeCapabilitiesBeforeMount", "imageCredentialProviderBinDir",
		"imageCredentialProviderConfigFile",
		"imagePullProgressDeadline", "keepTerminatedPodVolumes", "kubeConfig", "kubeletConfigFile", "lockFilePath",
		"masterServiceNamespace",
		"networkPluginMTU", "networkPluginName", "nonMasqueradeCidr", "registerNode", "registerWithTaints",
		"seccompProfileRoot",
		"remoteRuntimeEndpoint", "remoteImageEndpoint",
	}
}

// takeDeprecated removes the keys of older versions from the tree. It moves the runtime's endpoint to its current key,
// and warns of other keys that are set.
func takeDeprecated(root map[string]any) Problems {
	modules, _ := root["modules"].(map[string]any)
	edged, _ := modules["edged"].(map[string]any)
	var warnings Problems
	for _, key := range deprecatedEdged() {
		value, ok := edged[key]
		if !ok {
			continue
		}
		delete(edged, key)
		text := strict.NotActedOn
		switch key {
		case "remoteRuntimeEndpoint":
			text = moveEndpoint(edged, value, "containerRuntimeEndpoint")
		case "remoteImageEndpoint":
			text = moveEndpoint(edged, value, "imageServiceEndpoint")
		}
		if !isZero(value) {
			warnings = append(warnings, Problem{Path: "modules.edged." + key, Text: text})
		}
	}
	return warnings
}

func moveEndpoint(edged map[string]any, value any, to string) string {
	const prefix = "modules.edged.tailoredKubeletConfig."
	text, isText := value.(string)
	kubelet, isMap := edged["tailoredKubeletConfig"].(map[string]any)
	switch {
	case isText && strings.Contains(text, "dockershim"):
		return "ignored: there is no dockershim any more; " + prefix + to + " names a CRI runtime"
	case strict.Has(kubelet, to), edged["tailoredKubeletConfig"] != nil && !isMap:
		return "ignored: " + prefix + to + " has taken its place"
	case !isText || text == "":
		return "ignored: set " + prefix + to
	}
	if kubelet == nil {
		kubelet = map[string]any{}
		edged["tailoredKubeletConfig"] = kubelet
	}
	kubelet[to] = text
	return "the earlier name of " + prefix + to + ", and read as that"
}

// isZero reports whether v is a zero value, which generated files may hold.
func isZero(v any) bool {
	switch x := v.(type) {
	case nil:
		return true
	case bool:
		return !x
	case []any:
		return len(x) == 0
	case map[string]any:
		return len(x) == 0
	}
	return v == "" || v == "0s" || v == json.Number("0")
}
