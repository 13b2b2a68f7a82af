package env

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func service(ns, name, ip string, ports ...v1.ServicePort) v1.Service {
	return v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports},
	}
}

// TestServiceVariables: as the Kubernetes documentation of services gives them for its redis-primary.
func TestServiceVariables(t *testing.T) {
	services := []v1.Service{
		service("shop", "redis-primary", "10.0.0.11", v1.ServicePort{Port: 6379, Protocol: v1.ProtocolTCP}),
		service("shop", "headless", v1.ClusterIPNone, v1.ServicePort{Port: 1}),
		service("shop", "external", "", v1.ServicePort{Port: 1}),
		service("other", "secret", "10.0.0.12", v1.ServicePort{Port: 1}),
		service("default", "kubernetes", "10.0.0.1", v1.ServicePort{Name: "https", Port: 443}),
	}
	redis := []string{
		"REDIS_PRIMARY_SERVICE_HOST=10.0.0.11", "REDIS_PRIMARY_SERVICE_PORT=6379",
		"REDIS_PRIMARY_PORT=tcp://10.0.0.11:6379",
		"REDIS_PRIMARY_PORT_6379_TCP=tcp://10.0.0.11:6379", "REDIS_PRIMARY_PORT_6379_TCP_PROTO=tcp",
		"REDIS_PRIMARY_PORT_6379_TCP_PORT=6379", "REDIS_PRIMARY_PORT_6379_TCP_ADDR=10.0.0.11",
	}
	api := []string{
		"KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443", "KUBERNETES_SERVICE_PORT_HTTPS=443",
		"KUBERNETES_PORT=tcp://10.0.0.1:443",
		"KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443", "KUBERNETES_PORT_443_TCP_PROTO=tcp",
		"KUBERNETES_PORT_443_TCP_PORT=443", "KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1",
	}
	for _, c := range []struct {
		name  string
		links *bool
		env   []v1.EnvVar
		want  []string
	}{
		{"all of the namespace", nil, nil, append(append([]string{}, api...), redis...)},
		{"only the API's", ptr.To(false), nil, api},
		{
			"the pod's own go before, and refer to them", ptr.To(false),
			[]v1.EnvVar{
				{
					Name: "KUBERNETES_SERVICE_HOST", Value: "own",
				}, {Name: "URL", Value: "https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"},
			},
			append([]string{"KUBERNETES_SERVICE_HOST=own", "URL=https://own:443"}, api[1:]...),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: v1.PodSpec{EnableServiceLinks: c.links},
			}
			vars, _, err := Make(t.Context(), pod, &v1.Container{Env: c.env}, Facts{Services: services}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range vars {
				got = append(got, v.Key+"="+string(v.Value))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceOfIPv6AndUDP(t *testing.T) {
	vars := varsOf(
		ptr.To(service("n", "dns", "fd00::1", v1.ServicePort{Name: "dns-udp", Port: 53, Protocol: v1.ProtocolUDP})))
	var got []string
	for _, v := range vars {
		got = append(got, v.name+"="+v.value)
	}
	if text := strings.Join(got, " "); !strings.Contains(text, "DNS_SERVICE_PORT_DNS_UDP=53") ||
		!strings.Contains(text, "DNS_PORT_53_UDP=udp://[fd00::1]:53") {
		t.Errorf("variables %s, want DNS_SERVICE_PORT_DNS_UDP=53 and DNS_PORT_53_UDP=udp://[fd00::1]:53", text)
	}
}
