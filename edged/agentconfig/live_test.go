package agentconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// TestLiveKeysChangeSomething: a key that is said to be acted on changes what the agent is built with. This
// keeps the table of live keys true: to name one there without acting on it fails here.
func TestLiveKeysChangeSomething(t *testing.T) {
	const modules, edged, kubelet = "modules.", "modules.edged.", "modules.edged.tailoredKubeletConfig."
	// These are seen elsewhere: by the wiring in cmd/edgecore itself, or by nobody because there is nothing to choose.
	elsewhere := map[string]bool{
		"apiVersion": true, "kind": true, "edgecoreVersion": true, "database.driverName": true,
		"database.aliasName":   true,
		kubelet + "apiVersion": true, kubelet + "kind": true,
		modules + "metaManager.enable": true, modules + "metaManager.remoteQueryTimeout": true, edged + "enable": true,
		kubelet + "oomScoreAdj": true, modules + "deviceTwin": true, modules + "edgeStream.enable": true,
		modules + "edgeStream.server": true,
	}
	settings := map[string]string{
		"database.dataSource":      "database: {dataSource: /other}",
		edged + "hostnameOverride": inEdged("hostnameOverride: other"), edged + "nodeIP": inEdged("nodeIP: 192.0.2.9"),
		edged + "customInterfaceName":     inEdged("customInterfaceName: eth7"),
		edged + "reportEvent":             inEdged("reportEvent: false"),
		edged + "nodeLabels":              inEdged("nodeLabels: {a: b}"),
		edged + "registerSchedulable":     inEdged("registerSchedulable: false"),
		modules + "edgeHub.enable":        "modules: {edgeHub: {enable: false}}",
		edged + "minimumGCAge":            inEdged("minimumGCAge: 17s"),
		edged + "maxPerPodContainerCount": inEdged("maxPerPodContainerCount: 17"),
		edged + "maxContainerCount":       inEdged("maxContainerCount: 17"),
		edged + "serverAddress":           inEdged("serverAddress: 127.0.0.1"),
		edged + "rootDirectory":           inEdged("rootDirectory: /other"),
		edged + "seccompDefault":          inEdged("seccompDefault: true"),
		edged + "experimentalNodeAllocatableIgnoreEvictionThreshold": inEdged(
			"experimentalNodeAllocatableIgnoreEvictionThreshold: true"),
	}
	for key, value := range map[string]string{
		"staticPodPath": "/other", "podLogsDir": "/other", "syncFrequency": "17s", "fileCheckFrequency": "17s",
		"address": "127.0.0.2", "readOnlyPort": "10350",
		"enableServer": "false", "port": "17", "tlsCertFile": "/a, tlsPrivateKeyFile: /b",
		"tlsPrivateKeyFile": "/a, tlsCertFile: /b", "tlsMinVersion": "VersionTLS13",
		"tlsCipherSuites": "[TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]", "serverTLSBootstrap": "true",
		"authentication": "{anonymous: {enabled: true}}", "authorization": "{mode: AlwaysAllow}",
		"enableDebuggingHandlers": "false", "enableProfilingHandler": "false", "enableDebugFlagsHandler": "false",
		"enableSystemLogHandler": "false",
		"registryPullQPS":        "17", "registryBurst": "17", "serializeImagePulls": "false",
		"maxParallelImagePulls":                  "1",
		"imagePullCredentialsVerificationPolicy": "AlwaysVerify",
		"preloadedImagesVerificationAllowlist": "[example.com/a], imagePullCredentialsVerificationPolicy: " +
			"NeverVerifyAllowlistedImages",
		"imageMinimumGCAge": "17s", "imageMaximumGCAge": "17h",
		"imageGCHighThresholdPercent": "97", "imageGCLowThresholdPercent": "17",
		"clusterDomain": "other.local", "clusterDNS": "[192.0.2.1]", "resolvConf": "/other", "seccompDefault": "true",
		"allowedUnsafeSysctls": "[net.core.somaxconn]",
		"cgroupRoot":           "/other", "cgroupsPerQOS": "false", "cgroupDriver": "systemd", "cpuCFSQuota": "false",
		"cpuCFSQuotaPeriod": "17ms", "podPidsLimit": "1700",
		"memorySwap": "{swapBehavior: LimitedSwap}", "singleProcessOOMKill": "true",
		"maxPods": "17", "systemReserved": "{memory: 17Mi}", "kubeReserved": "{cpu: 17m}",
		"crashLoopBackOff":       "{maxContainerRestartPeriod: 17s}",
		"enforceNodeAllocatable": "[none]", "kernelMemcgNotification": "true",
		"mergeDefaultEvictionSettings":     "true, evictionHard: {memory.available: 17Mi}",
		"systemReservedCgroup":             "/a, systemReserved: {cpu: 17m}, enforceNodeAllocatable: [system-reserved]",
		"kubeReservedCgroup":               "/a, kubeReserved: {cpu: 17m}, enforceNodeAllocatable: [kube-reserved]",
		"evictionHard":                     "{memory.available: 17Mi}",
		"evictionSoft":                     "{pid.available: 17%}, evictionSoftGracePeriod: {pid.available: 1s}",
		"evictionSoftGracePeriod":          "{pid.available: 17s}, evictionSoft: {pid.available: 17%}",
		"evictionMinimumReclaim":           "{memory.available: 17Mi}",
		"evictionPressureTransitionPeriod": "17s", "evictionMaxPodGracePeriod": "17",
		"containerRuntimeEndpoint": "unix:///other", "imageServiceEndpoint": "unix:///other",
		"runtimeRequestTimeout": "17s",
		"registerNode":          "false", "registerWithTaints": "[{key: a, effect: NoSchedule}]",
		"podCIDR":                   "10.1.0.0/24",
		"nodeStatusUpdateFrequency": "17s",
		"containerLogMaxSize":       "17Mi", "containerLogMaxFiles": "17", "containerLogMaxWorkers": "17",
		"containerLogMonitorInterval":      "17s",
		"shutdownGracePeriod":              "17s",
		"shutdownGracePeriodByPodPriority": "[{priority: 17, shutdownGracePeriodSeconds: 17}]",
		"nodeStatusReportFrequency":        "17s", "nodeLeaseDurationSeconds": "17", "nodeStatusMaxImages": "17",
		"eventRecordQPS": "17", "eventBurst": "17", "streamingConnectionIdleTimeout": "17m",
	} {
		settings[kubelet+key] = inEdged("tailoredKubeletConfig: {" + key + ": " + value + "}")
	}
	settings[kubelet+"shutdownGracePeriodCriticalPods"] =
		inEdged("tailoredKubeletConfig: {shutdownGracePeriod: 17s, shutdownGracePeriodCriticalPods: 7s}")
	base, err := EdgedOptions(v1alpha2.Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range v1alpha2.LiveKeys() {
		text, ok := settings[key]
		// edgehub and eventbus take their sections as they are
		if elsewhere[key] || strings.HasPrefix(key, modules+"edgeHub.") && key != modules+"edgeHub.enable" ||
			strings.HasPrefix(key, modules+"eventBus.") {
			continue
		}
		if !ok {
			t.Errorf("no value here for %s, want one: it is among the live keys", key)
			continue
		}
		cfg, warnings, err := v1alpha2.Load(writeConfig(t, text+"\n"))
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: Load = %v, warnings %v; want neither", key, err, warnings)
			continue
		}
		opts, err := EdgedOptions(cfg)
		if err != nil {
			t.Errorf("%s: %v", key, err)
		} else if reflect.DeepEqual(base, opts) {
			t.Errorf("%s: %s changes nothing, want a change: the key is among the live keys", key, text)
		}
	}
}

func inEdged(text string) string { return "modules: {edged: {" + text + "}}" }

// writeConfig writes a configuration file with the given keys, and returns its path.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edgecore.yaml")
	head := "apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\n"
	if err := os.WriteFile(path, []byte(head+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
