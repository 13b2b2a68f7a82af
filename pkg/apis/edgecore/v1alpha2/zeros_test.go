package v1alpha2

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// kubeadmFile is /var/lib/kubelet/config.yaml as kubeadm v1.36 writes it, without what it sets to values of a cluster.
const kubeadmFile = `
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: ""
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options:
    json: {infoBufferSize: "0"}
    text: {infoBufferSize: "0"}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`

// TestKubeadmFile: what kubeadm writes, pasted under tailoredKubeletConfig, is the default.
func TestKubeadmFile(t *testing.T) {
	text := head + "modules:\n  edged:\n    tailoredKubeletConfig:" + strings.ReplaceAll(kubeadmFile, "\n", "\n      ")
	cfg, warnings, err := Parse([]byte(text))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("Parse = %v, warnings %q; want neither", err, warnings)
	}
	// An empty buffer size is the same as none.
	got := cfg.Modules.Edged.TailoredKubeletConfig
	got.Logging.Options = Default().Modules.Edged.TailoredKubeletConfig.Logging.Options
	if diff := cmp.Diff(Default().Modules.Edged.TailoredKubeletConfig, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestZeroIsTheDefault: each setting of the kubelet that is empty, zero or null has its default, but for those whose
// zero turns something off.
func TestZeroIsTheDefault(t *testing.T) {
	kubelet := func(cfg *EdgeCore) reflect.Value {
		return reflect.ValueOf(cfg.Modules.Edged.TailoredKubeletConfig)
	}
	parse := func(path, value string) (*EdgeCore, error) {
		text := head + "modules:\n  edged:\n    tailoredKubeletConfig:\n"
		indent := "      "
		for key := range strings.SplitSeq(path, ".") {
			text += indent + key + ":\n"
			indent += "  "
		}
		cfg, _, err := Parse([]byte(strings.TrimSuffix(text, "\n") + " " + value + "\n"))
		return cfg, err
	}
	count := 0
	var walk func(prefix string, index []int, typ reflect.Type)
	walk = func(prefix string, index []int, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			at := append(slices.Clone(index), i)
			if key == "" || slices.Contains([]string{"staticPodPath", "readOnlyPort", "clusterDomain"}, key) {
				continue
			}
			value := "null"
			switch f.Type.Kind() {
			case reflect.Struct:
				if f.Type != reflect.TypeFor[metav1.Duration]() {
					if f.Name != "FlushFrequency" {
						walk(prefix+key+".", at, f.Type)
					}
					continue
				}
				value = "0s"
			case reflect.String:
				value = `""`
			case reflect.Int32, reflect.Int64, reflect.Uint32:
				value = "0"
			}
			count++
			cfg, err := parse(prefix+key, value)
			if err != nil {
				t.Errorf("%s%s: %s: %v, want no error", prefix, key, value, err)
				continue
			}
			want, got := kubelet(Default()).FieldByIndex(at), kubelet(cfg).FieldByIndex(at)
			if diff := cmp.Diff(want.Interface(), got.Interface()); diff != "" {
				t.Errorf("%s%s: %s (-want +got):\n%s", prefix, key, value, diff)
			}
		}
	}
	walk("", nil, kubelet(Default()).Type())
	if count < 100 {
		t.Errorf("tried %d settings, want 100 or more", count)
	}
}

// TestZerosThatMean: these zeros are values.
func TestZerosThatMean(t *testing.T) {
	cfg, _, err := Parse([]byte(head + `
modules:
  edged:
    tailoredKubeletConfig:
      staticPodPath: ""
      readOnlyPort: 0
      clusterDomain: ""
      registryPullQPS: 0
      eventRecordQPS: 0
      evictionHard: {}
      enforceNodeAllocatable: []
      podPidsLimit: 0
      maxParallelImagePulls: 5
`))
	if err != nil {
		t.Fatal(err)
	}
	k := &cfg.Modules.Edged.TailoredKubeletConfig
	got := fmt.Sprint(k.StaticPodPath, k.ReadOnlyPort, k.ClusterDomain, *k.RegistryPullQPS, *k.EventRecordQPS,
		len(k.EvictionHard), len(k.EnforceNodeAllocatable), *k.PodPidsLimit, *k.SerializeImagePulls)
	if want := fmt.Sprint("", 0, "", 0, 0, 0, 0, -1, false); got != want {
		t.Errorf("settings %s, want %s", got, want)
	}
	if cfg, _, err = Parse([]byte(head)); err != nil || !*cfg.Modules.Edged.TailoredKubeletConfig.SerializeImagePulls {
		t.Errorf("serializeImagePulls of an empty file: %v, %v; want true", cfg, err)
	}
	if got := cfg.Modules.Edged.TailoredKubeletConfig.EvictionPressureTransitionPeriod.Duration; got != 5*time.Minute {
		t.Errorf("evictionPressureTransitionPeriod = %v, want 5m", got)
	}
	for in, want := range map[int64]int64{-7: -1, -1: -1, 0: -1, 9: 9} {
		k.PodPidsLimit = ptr.To(in)
		if completeKubelet(k); *k.PodPidsLimit != want {
			t.Errorf("podPidsLimit %d = %d, want %d", in, *k.PodPidsLimit, want)
		}
	}
}
