package v1alpha2

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// live are the keys that this version acts on. A later part adds its own here.
func live() map[string]bool {
	const kubelet = "modules.edged.tailoredKubeletConfig."
	keys := map[string]bool{
		"apiVersion": true, "kind": true, "edgecoreVersion": true,
		"database.dataSource": true, "database.driverName": true, "database.aliasName": true,
		"modules.edged.enable": true, "modules.edged.hostnameOverride": true, "modules.edged.nodeIP": true, "modules.edged.rootDirectory": true,
		"modules.edged.seccompDefault": true, "modules.metaManager.enable": true,
	}
	for _, k := range []string{
		"apiVersion", "kind", "staticPodPath", "podLogsDir", "syncFrequency", "fileCheckFrequency", "address", "readOnlyPort",
		"registryPullQPS", "registryBurst", "clusterDomain", "clusterDNS", "cgroupRoot", "cgroupsPerQOS", "cgroupDriver",
		"runtimeRequestTimeout", "maxPods", "podPidsLimit", "resolvConf", "cpuCFSQuota", "cpuCFSQuotaPeriod", "serializeImagePulls",
		"maxParallelImagePulls", "crashLoopBackOff", "systemReserved", "kubeReserved", "seccompDefault",
		"containerRuntimeEndpoint", "imageServiceEndpoint", "oomScoreAdj",
	} {
		keys[kubelet+k] = true
	}
	return keys
}

// unused returns a warning for each key that the file sets, that KubeEdge acts on, and that this version does
// not. A key that has its default is left in peace: nothing is lost by it.
func unused(root map[string]any) []string {
	defaults := map[string]any{}
	if data, err := json.Marshal(Default()); err == nil {
		_ = json.Unmarshal(data, &defaults) // what was just made
	}
	keys := live()
	var warnings []string
	var walk func(at string, value, fallback any)
	walk = func(at string, value, fallback any) {
		if keys[at] {
			return
		}
		if m, ok := value.(map[string]any); ok && at != "featureGates" && !isLeafMap(at) {
			d, _ := fallback.(map[string]any)
			for _, k := range sortedKeys(m) {
				walk(strings.TrimPrefix(at+"."+k, "."), m[k], d[k])
			}
			return
		}
		if !equalValues(value, fallback) {
			warnings = append(warnings, fmt.Sprintf("%s: accepted, but this version does not act on it", at))
		}
	}
	walk("", root, defaults)
	return warnings
}

// isLeafMap: maps whose keys are the user's are one key to warn of, not many.
func isLeafMap(at string) bool {
	switch at[strings.LastIndex(at, ".")+1:] {
	case "nodeLabels", "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim", "featureGates", "logging", "qosReserved",
		"cpuManagerPolicyOptions", "topologyManagerPolicyOptions", "memorySwap", "authentication", "authorization", "staticPodURLHeader", "tracing", "userNamespaces":
		return true
	}
	return false
}

// equalValues compares a value with its default; zero values and missing ones are the same.
func equalValues(a, b any) bool {
	if isZero(a) && isZero(b) {
		return true
	}
	return reflect.DeepEqual(a, b) || fmt.Sprint(a) == fmt.Sprint(b)
}

func isZero(v any) bool {
	switch x := v.(type) {
	case nil:
		return true
	case string:
		return x == "" || x == "0s"
	case float64:
		return x == 0
	case bool:
		return !x
	case []any:
		return len(x) == 0
	case map[string]any:
		return len(x) == 0
	}
	return false
}
