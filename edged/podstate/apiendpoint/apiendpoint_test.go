package apiendpoint

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pod(annotation string, audiences ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	if annotation != "" {
		p.Annotations[Annotation] = annotation
	}
	for _, audience := range audiences {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{
			Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Audience: audience}},
				{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: RootCA}}},
			}},
		}})
	}
	return p
}

func endpoint(access string) *Endpoint {
	return &Endpoint{
		Addresses: []netip.AddrPort{
			netip.MustParseAddrPort("169.254.30.10:10550"), netip.MustParseAddrPort("[fdec:30::10]:10551"),
		},
		Access: access,
		CA:     func() []byte { return []byte("device\n") },
	}
}

// withoutCA is a pod whose tokens have no CA beside them.
func withoutCA(p *v1.Pod) *v1.Pod {
	for _, volume := range p.Spec.Volumes {
		volume.Projected.Sources = volume.Projected.Sources[:1]
	}
	return p
}

// TestUsedBy: the annotation goes before the setting, and a pod without a token for the API never uses the endpoint.
// One that would not trust it does if it says so.
func TestUsedBy(t *testing.T) {
	for _, tc := range []struct {
		access string
		pod    *v1.Pod
		want   bool
	}{
		{All, pod("", ""), true},
		{All, pod("false", ""), false},
		{All, pod("maybe", ""), true},
		{All, pod("", "vault"), false},
		{All, pod("true", "vault", ""), true},
		{All, pod("true"), false},
		{All, withoutCA(pod("", "")), false},
		{All, withoutCA(pod("true", "")), true},
		{Annotated, pod("", ""), false},
		{Annotated, pod("true", ""), true},
		{None, pod("", ""), false},
		{None, pod("true", ""), true},
	} {
		if got := endpoint(tc.access).UsedBy(tc.pod); got != tc.want {
			t.Errorf("access %s, annotations %v, %d volumes: used %v, want %v", tc.access, tc.pod.Annotations,
				len(tc.pod.Spec.Volumes), got, tc.want)
		}
	}
	var none *Endpoint
	if none.UsedBy(pod("true", "")) {
		t.Error("a pod uses the endpoint of a device without one")
	}
}

// TestServices: the Service of the API server has the endpoint's address, in its family; others stay, and so does the
// caller's list.
func TestServices(t *testing.T) {
	service := func(namespace, name, ip string, ports ...v1.ServicePort) v1.Service {
		return v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       v1.ServiceSpec{ClusterIP: ip, Ports: ports},
		}
	}
	cluster := v1.ServicePort{Name: "https", Protocol: v1.ProtocolTCP, Port: 443}
	ours := func(port int32) v1.ServicePort {
		return v1.ServicePort{Name: "https", Protocol: v1.ProtocolTCP, Port: port}
	}
	other, decoy := service("shop", "web", "10.96.0.9"), service("shop", "kubernetes", "10.96.0.8")
	for name, tc := range map[string]struct {
		pod      *v1.Pod
		services []v1.Service
		want     []v1.Service
	}{
		"IPv4": {pod("", ""), []v1.Service{other, service("default", "kubernetes", "10.96.0.1", cluster), decoy},
			[]v1.Service{other, service("default", "kubernetes", "169.254.30.10", ours(10550)), decoy}},
		"IPv6": {pod("", ""), []v1.Service{service("default", "kubernetes", "fd00::1", cluster)},
			[]v1.Service{service("default", "kubernetes", "fdec:30::10", ours(10551))}},
		"never seen": {pod("", ""), []v1.Service{decoy},
			[]v1.Service{decoy, service("default", "kubernetes", "169.254.30.10", ours(10550))}},
		"not used": {pod("false", ""), []v1.Service{service("default", "kubernetes", "10.96.0.1", cluster)},
			[]v1.Service{service("default", "kubernetes", "10.96.0.1", cluster)}},
	} {
		before := append([]v1.Service(nil), tc.services...)
		if diff := cmp.Diff(tc.want, endpoint(All).Services(tc.pod, tc.services)); diff != "" {
			t.Errorf("%s: services (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(before, tc.services); diff != "" {
			t.Errorf("%s: the caller's services (-before +after):\n%s", name, diff)
		}
	}
}

func TestCA(t *testing.T) {
	e := endpoint(All)
	for cluster, want := range map[string]string{
		"cluster\n": "cluster\ndevice\n", "cluster": "cluster\ndevice\n", "": "device\n",
	} {
		if got := string(e.WithCA([]byte(cluster))); got != want {
			t.Errorf("ca.crt of %q is %q, want %q", cluster, got, want)
		}
	}
	p := pod("", "", "vault")
	if !e.Trusts(p, p.Spec.Volumes[0].Projected) || e.Trusts(p, p.Spec.Volumes[1].Projected) || e.Trusts(p, nil) {
		t.Error("want the device's CA in the volume with a token for the API, and in no other")
	}
}
