package podinputs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/dns"
	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// TestSandbox: a pod that wants the cluster's DNS on a device without one gets its host name and one event, until it is
// forgotten.
func TestSandbox(t *testing.T) {
	recorder := events.New("n", nil)
	in := New(Options{
		DNS:      func() *dns.Configurer { return dns.New(dns.Config{}) },
		Cgroups:  cgroups.New(cgroups.Options{}),
		Volumes:  volume.New(volume.Options{Root: t.TempDir()}),
		Recorder: recorder,
		Facts:    func() env.Facts { return env.Facts{HostIPs: []string{"192.0.2.1"}} },
	})
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"},
		Spec:       v1.PodSpec{DNSPolicy: v1.DNSClusterFirst},
	}
	for range 2 {
		got, err := in.Sandbox(t.Context(), pod)
		if err != nil || got.Hostname != "web" || got.DNS == nil {
			t.Fatalf("Sandbox = %+v, %v; want the host name web and a DNS configuration", got, err)
		}
	}
	if list := recorder.List(); len(list) != 1 || list[0].Count > 1 {
		t.Errorf("events = %v, want one about the missing cluster DNS", list)
	}
	in.Forget(pod.UID)
	if _, err := in.Sandbox(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if list := recorder.List(); len(list) != 1 || list[0].Count != 2 {
		t.Errorf("events after the pod was forgotten = %v, want a second one", list)
	}
	pod.Spec.Hostname = strings.Repeat("x", 64)
	pod.Spec.SetHostnameAsFQDN = new(true)
	pod.Spec.Subdomain = "sub"
	if _, err := in.Sandbox(t.Context(), pod); err == nil {
		t.Errorf("Sandbox with a host name of more than 64 characters = nil, want an error")
	}
}

// TestFileOf: a fileKeyRef reads from a volume that is set up as a folder, and from no other.
func TestFileOf(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "env"), []byte("A=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := New(Options{})
	in.SetVolumes("u", volume.Volumes{"data": {Path: dir}, "raw": {Path: "/dev/null", Block: true}, "unused": {}})
	if got, err := fileOf(in.volumesOf("u"), "data", "env"); err != nil || string(got) != "A=1\n" {
		t.Errorf("fileOf(data, env) = %q, %v; want A=1", got, err)
	}
	for _, name := range []string{"raw", "unused", "none"} {
		if _, err := fileOf(in.volumesOf("u"), name, "env"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("fileOf(%s) = %v, want an error that names the volume", name, err)
		}
	}
	in.Forget("u")
	if _, err := fileOf(in.volumesOf("u"), "data", "env"); err == nil {
		t.Errorf("fileOf after Forget = nil, want an error: the volumes are not known any more")
	}
}

func TestHasMount(t *testing.T) {
	c := &v1.Container{VolumeMounts: []v1.VolumeMount{{MountPath: "/data"}, {MountPath: "/etc/hosts"}}}
	if !hasMount(c, "/etc/hosts") || hasMount(c, "/etc") {
		t.Errorf("hasMount(/etc/hosts) = %t, hasMount(/etc) = %t; want true, false", hasMount(c, "/etc/hosts"),
			hasMount(c, "/etc"))
	}
}
