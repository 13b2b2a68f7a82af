package v1alpha2

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestChanges(t *testing.T) {
	const kubelet = "modules.edged.tailoredKubeletConfig."
	for name, tc := range map[string]struct {
		set  func(*EdgeCore)
		want []Change
	}{
		"nothing": {func(*EdgeCore) {}, nil},
		"what is taken over, and what is not": {func(e *EdgeCore) {
			e.Modules.Edged.TailoredKubeletConfig.ClusterDNS = []string{"192.0.2.1"}
			e.Modules.Edged.TailoredKubeletConfig.MaxPods = 17
		}, []Change{
			{Path: kubelet + "clusterDNS", From: unset, To: `["192.0.2.1"]`, Live: true},
			{Path: kubelet + "maxPods", From: "110", To: "17"},
		}},
		"below a mapping that is taken over as a whole": {func(e *EdgeCore) {
			e.Modules.EdgeHub.WebSocket.Server = "192.0.2.9:10000"
			e.Modules.Edged.TailoredKubeletConfig.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{
				Duration: time.Minute,
			}
		}, []Change{
			{Path: "modules.edgeHub.websocket.server", From: `"127.0.0.1:10000"`, To: `"192.0.2.9:10000"`, Live: true},
			{Path: kubelet + "crashLoopBackOff.maxContainerRestartPeriod", From: unset, To: `"1m0s"`, Live: true},
		}},
		"keys of the user's own are one value": {func(e *EdgeCore) {
			e.Modules.Edged.NodeLabels = map[string]string{"example.com/a": "b", "c": "d"}
		}, []Change{{Path: "modules.edged.nodeLabels", From: unset, To: `{"c":"d","example.com/a":"b"}`}}},
		"a secret is named and not shown": {
			func(e *EdgeCore) {
				e.Modules.EdgeHub.Token = "abcdef"
				e.Modules.EdgeHub.HTTPServer = "https://user:pass@192.0.2.1:10002"
			}, []Change{
				{
					Path: "modules.edgeHub.httpServer", From: `"https://127.0.0.1:10002"`,
					To: `"https://user:(hidden)@192.0.2.1:10002"`,
				},
				{Path: "modules.edgeHub.token", From: `""`, To: `"(hidden)"`},
			},
		},
		"a key that nobody acts on": {func(e *EdgeCore) {
			e.Modules.EventBus.MqttQOS, e.Modules.ServiceBus.Port = 2, 17
		}, nil},
		"a pointer that was not there": {func(e *EdgeCore) {
			e.Modules.Edged.TailoredKubeletConfig.EventRecordQPS = ptr.To[int32](7)
		}, []Change{{Path: kubelet + "eventRecordQPS", From: "50", To: "7", Live: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := named(), named()
			tc.set(to)
			got, err := Changes(from, to)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			back, err := Changes(to, from)
			if err != nil || len(back) != len(got) {
				t.Errorf("changes back = %v, %v; want %d", back, err, len(got))
			}
		})
	}
}

// TestReloadableKeysAreActedOn: what is said to be taken over is acted on in the first place.
func TestReloadableKeysAreActedOn(t *testing.T) {
	acted := live()
	known := schema().Keys()
	for _, key := range ReloadableKeys() {
		if _, ok := known[key]; !ok {
			t.Errorf("reloadable %s is not a key, want one", key)
		}
		below := false
		for k := range acted {
			below = below || k == key || strings.HasPrefix(k, key+".")
		}
		if !below {
			t.Errorf("reloadable %s is not among the live keys, want it there", key)
		}
	}
}
