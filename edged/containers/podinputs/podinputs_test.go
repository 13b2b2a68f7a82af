package podinputs

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/dns"
	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/edged/storage/devices"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// plugged is what plugins gave a container.
type plugged devices.Answer

func (p plugged) Container(context.Context, *v1.Pod, *v1.Container) (devices.Answer, error) {
	return devices.Answer(p), nil
}

// TestContainerEnvironment: commands see the variables of devices and the values of others do not, a pod's own variable
// has precedence, and the pod's addresses are in the order of the node's families.
func TestContainerEnvironment(t *testing.T) {
	field := func(name, path string) v1.EnvVar {
		return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}}
	c := &v1.Container{
		Command: []string{"run", "$(GPU) $(MODE)"},
		Env: []v1.EnvVar{
			{Name: "MODE", Value: "own"}, {Name: "SEEN", Value: "$(GPU)"},
			field("IP", "status.podIP"), field("IPS", "status.podIPs"),
		},
	}
	dir := t.TempDir()
	for ipv6First, want := range map[bool][]string{
		false: {"GPU=0", "MODE=own", "SEEN=$(GPU)", "IP=10.0.0.1", "IPS=10.0.0.1,fd00::1"},
		true:  {"GPU=0", "MODE=own", "SEEN=$(GPU)", "IP=fd00::1", "IPS=fd00::1,10.0.0.1"},
	} {
		in := New(Options{
			DNS:      func() *dns.Configurer { return dns.New(dns.Config{}) },
			Volumes:  volume.New(volume.Options{Root: dir}),
			Devices:  plugged{Envs: map[string]string{"GPU": "0", "MODE": "plugin's"}},
			PodDir:   func(types.UID) string { return dir },
			Facts:    func() env.Facts { return env.Facts{} },
			Services: func(context.Context, *v1.Pod) []v1.Service { return nil },
			Started: func(uid types.UID, podIPs []string) {
				if uid != pod.UID || len(podIPs) != 2 {
					t.Errorf("Started(%s, %v), want the pod with its addresses", uid, podIPs)
				}
			},
			IPv6First: func() bool { return ipv6First },
		})
		got, err := in.Container(t.Context(), pod, c, []string{"10.0.0.1", "fd00::1"})
		if err != nil {
			t.Errorf("Container, IPv6 first %v: %v, want no error", ipv6First, err)
			continue
		}
		var vars []string
		for _, v := range got.Envs {
			vars = append(vars, v.Key+"="+string(v.Value))
		}
		if diff := cmp.Diff(want, vars); diff != "" {
			t.Errorf("variables, IPv6 first %v (-want +got):\n%s", ipv6First, diff)
		}
		if diff := cmp.Diff([]string{"run", "0 own"}, got.Command); diff != "" {
			t.Errorf("command, IPv6 first %v (-want +got):\n%s", ipv6First, diff)
		}
	}
}

func TestExpandPath(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"A": "v", "EMPTY": ""}[name]
		return value, ok
	}
	if got, err := expandPath("x/$(A)", lookup); err != nil || got != "x/v" {
		t.Errorf("expandPath(x/$(A)) = %q, %v; want x/v", got, err)
	}
	for text, want := range map[string]string{
		"x/$(B)": "missing value for B", "$(EMPTY)": "missing value for EMPTY",
		"$(EMPTY)/$(B)/$(A)/$(EMPTY)": "missing value for B, EMPTY",
	} {
		if got, err := expandPath(text, lookup); err == nil || err.Error() != want {
			t.Errorf("expandPath(%s): got %q, %v, want %q", text, got, err, want)
		}
	}
}
