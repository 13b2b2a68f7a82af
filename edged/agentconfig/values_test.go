package agentconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

const kubeletKeys = "modules.edged.tailoredKubeletConfig."

// specialValues are values of keys for which one by their type is not allowed, or changes nothing. Keys beside them
// that they need follow them.
func specialValues() map[string]string {
	values := map[string]string{
		"modules.edgeHub.websocket.enable": "false}, quic: {enable: true",
		"modules.edgeHub.websocket.server": `"192.0.2.9:1"`,
		"modules.edgeHub.quic.enable":      "true}, websocket: {enable: false",
		"modules.edgeHub.quic.server":      `"192.0.2.9:1"`,
		"modules.edged.nodeIP":             "192.0.2.9",
		"modules.edged.nodeLabels":         "{a: b}",
		"modules.edged.serverAddress":      "127.0.0.1",
	}
	for key, value := range map[string]string{
		"address":                                "127.0.0.2",
		"tlsCertFile":                            "/a, tlsPrivateKeyFile: /b",
		"tlsPrivateKeyFile":                      "/a, tlsCertFile: /b",
		"tlsMinVersion":                          "VersionTLS13",
		"tlsCipherSuites":                        "[TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]",
		"authorization.mode":                     "AlwaysAllow",
		"maxParallelImagePulls":                  "1",
		"imagePullCredentialsVerificationPolicy": "AlwaysVerify",
		"preloadedImagesVerificationAllowlist": "[example.com/a], imagePullCredentialsVerificationPolicy: " +
			"NeverVerifyAllowlistedImages",
		"imageGCHighThresholdPercent":      "97",
		"clusterDNS":                       "[192.0.2.1]",
		"podCIDR":                          "10.1.0.0/24",
		"allowedUnsafeSysctls":             "[net.core.somaxconn]",
		"cgroupDriver":                     "systemd",
		"cpuCFSQuotaPeriod":                "17ms",
		"memorySwap.swapBehavior":          "LimitedSwap",
		"systemReserved":                   "{memory: 17Mi}",
		"kubeReserved":                     "{cpu: 17m}",
		"enforceNodeAllocatable":           "[none]",
		"systemReservedCgroup":             "/a, systemReserved: {cpu: 17m}, enforceNodeAllocatable: [system-reserved]",
		"kubeReservedCgroup":               "/a, kubeReserved: {cpu: 17m}, enforceNodeAllocatable: [kube-reserved]",
		"mergeDefaultEvictionSettings":     "true, evictionHard: {memory.available: 17Mi}",
		"evictionHard":                     "{memory.available: 17Mi}",
		"evictionSoft":                     "{pid.available: 17%}, evictionSoftGracePeriod: {pid.available: 1s}",
		"evictionSoftGracePeriod":          "{pid.available: 17s}, evictionSoft: {pid.available: 17%}",
		"evictionMinimumReclaim":           "{memory.available: 17Mi}",
		"containerRuntimeEndpoint":         "unix:///other",
		"imageServiceEndpoint":             "unix:///other",
		"registerWithTaints":               "[{key: a, effect: NoSchedule}]",
		"containerLogMaxSize":              "17Mi",
		"shutdownGracePeriodCriticalPods":  "7s, shutdownGracePeriod: 17s",
		"shutdownGracePeriodByPodPriority": "[{priority: 17, shutdownGracePeriodSeconds: 17}]",
	} {
		values[kubeletKeys+key] = value
	}
	return values
}

// valuesOf returns values for a key of a type, at least one of which differs from its default.
func valuesOf(typ reflect.Type) []string {
	switch {
	case typ == reflect.TypeFor[metav1.Duration]():
		return []string{"17s"}
	case typ.Kind() == reflect.Bool:
		return []string{"true", "false"}
	case typ.Kind() == reflect.String:
		return []string{"other", "/other"}
	}
	return []string{"17"}
}

// changing returns a configuration in which a key has another value than its default, and what differs from the
// default configuration. A key of a plain type needs no value here.
func changing(t *testing.T, key string) (*v1alpha2.EdgeCore, []v1alpha2.Change) {
	t.Helper()
	values := valuesOf((&strict.Schema[v1alpha2.EdgeCore]{}).Keys()[key])
	if value, ok := specialValues()[key]; ok {
		values = []string{value}
	}
	var last error
	for _, value := range values {
		keys := strict.Split(key)
		text := strings.Join(keys, ": {") + ": " + value + strings.Repeat("}", len(keys)-1) + "\n"
		cfg, warnings, err := v1alpha2.Load(writeConfig(t, text))
		if err != nil || len(warnings) > 0 {
			last = err
			continue
		}
		changes, err := v1alpha2.Changes(v1alpha2.Default(), cfg)
		if err == nil && slices.ContainsFunc(changes, func(c v1alpha2.Change) bool { return c.Path == key }) {
			return cfg, changes
		}
		last = err
	}
	t.Errorf("%s: each of the values %q is the default or not allowed (%v), want another one in specialValues", key,
		values, last)
	return nil, nil
}

// TestSpecialValues: special values are of keys that the agent acts on.
func TestSpecialValues(t *testing.T) {
	live := v1alpha2.LiveKeys()
	for key := range specialValues() {
		if !slices.Contains(live, key) {
			t.Errorf("%s has a special value and is not among the live keys, want it there", key)
		}
	}
}

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
