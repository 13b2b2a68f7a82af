package runtime

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestUnsupported(t *testing.T) {
	one := resource.MustParse("1")
	for path, c := range map[string]struct {
		set    func(*v1.PodSpec)
		refuse bool
	}{
		"spec.ephemeralContainers": {func(s *v1.PodSpec) { s.EphemeralContainers = []v1.EphemeralContainer{{}} }, false},
		"spec.activeDeadlineSeconds": {func(s *v1.PodSpec) {
			s.ActiveDeadlineSeconds = ptr.To[int64](5)
		}, false},
		"spec.readinessGates":   {func(s *v1.PodSpec) { s.ReadinessGates = []v1.PodReadinessGate{{}} }, false},
		"spec.runtimeClassName": {func(s *v1.PodSpec) { s.RuntimeClassName = ptr.To("kata") }, true},
		"spec.os.name":          {func(s *v1.PodSpec) { s.OS = &v1.PodOS{Name: v1.Windows} }, true},
		"spec.hostUsers":        {func(s *v1.PodSpec) { s.HostUsers = ptr.To(false) }, true},
		"spec.resourceClaims":   {func(s *v1.PodSpec) { s.ResourceClaims = []v1.PodResourceClaim{{}} }, true},
		"spec.securityContext.supplementalGroupsPolicy": {func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict)}
		}, true},
		"spec.containers[1].livenessProbe":       {func(s *v1.PodSpec) { s.Containers[1].LivenessProbe = &v1.Probe{} }, false},
		"spec.containers[0].readinessProbe":      {func(s *v1.PodSpec) { s.Containers[0].ReadinessProbe = &v1.Probe{} }, false},
		"spec.initContainers[0].startupProbe":    {func(s *v1.PodSpec) { s.InitContainers[0].StartupProbe = &v1.Probe{} }, false},
		"spec.containers[0].lifecycle.postStart": {func(s *v1.PodSpec) { s.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{}} }, false},
		"spec.containers[0].lifecycle.preStop":   {func(s *v1.PodSpec) { s.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}} }, false},
		"spec.containers[0].lifecycle.stopSignal": {func(s *v1.PodSpec) {
			s.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: ptr.To(v1.SIGUSR1)}
		}, false},
		"spec.containers[0].volumeDevices":    {func(s *v1.PodSpec) { s.Containers[0].VolumeDevices = []v1.VolumeDevice{{}} }, true},
		"spec.containers[0].resources.claims": {func(s *v1.PodSpec) { s.Containers[0].Resources.Claims = []v1.ResourceClaim{{}} }, true},
		"spec.containers[0].restartPolicy": {func(s *v1.PodSpec) {
			s.Containers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
		}, false},
		"spec.containers[0].resizePolicy[1]": {func(s *v1.PodSpec) {
			s.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{RestartPolicy: v1.NotRequired}, {RestartPolicy: v1.RestartContainer}}
		}, false},
		"spec.containers[0].resources.limits[hugepages-2Mi]": {func(s *v1.PodSpec) {
			s.Containers[0].Resources.Limits = v1.ResourceList{"hugepages-2Mi": one, "cpu": one, "memory": one}
		}, false},
	} {
		pod := testPod(v1.RestartPolicyAlways, 1, 2)
		c.set(&pod.Spec)
		if diff := cmp.Diff([]string{path}, Unsupported(pod)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
		if err := Refused(pod); (err != nil) != c.refuse || (c.refuse && !strings.HasPrefix(err.Error(), path+": ")) {
			t.Errorf("%s: refused %v, want %v", path, err, c.refuse)
		}
	}
	// What the API server sets on every pod, and what is acted on, is no news.
	pod := testPod(v1.RestartPolicyAlways, 1, 1)
	pod.Spec.EnableServiceLinks, pod.Spec.HostUsers = ptr.To(true), ptr.To(true)
	pod.Spec.OS = &v1.PodOS{Name: v1.Linux}
	pod.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: v1.NotRequired}}
	if got := Unsupported(pod); len(got) > 0 {
		t.Errorf("an ordinary pod: %v", got)
	}
}

// TestUnsupportedPods: a refused pod gets no sandbox and says why; a pod that lacks less runs, and says what.
func TestUnsupportedPods(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.HostUsers = ptr.To(false)
	res := g.sync(pod)
	if res.SandboxErr == nil || !strings.Contains(res.SandboxErr.Message, "spec.hostUsers: ") || len(g.fake.Calls("RunPodSandbox")) > 0 {
		t.Errorf("%+v", res)
	}
	pod.Spec.HostUsers = nil
	pod.Spec.Containers[0].LivenessProbe = &v1.Probe{}
	if !g.settle(pod).Container("c0").Running() {
		t.Error("a probe keeps the pod from running")
	}
	if want := "UnsupportedField This node does not act on: spec.containers[0].livenessProbe"; !strings.Contains(strings.Join(g.events.list, "\n"), want) {
		t.Errorf("%q", g.events.list)
	}
	// A pod that runs is adopted, also when it could not be started here.
	pod.Spec.HostUsers = ptr.To(false)
	if res := g.sync(pod); res.Changed || res.Err != nil {
		t.Errorf("a pod that runs is touched: %+v", res)
	}
}

func TestSysctlName(t *testing.T) {
	for in, want := range map[string]string{
		"kernel.shm_rmid_forced": "kernel.shm_rmid_forced", "kernel/shm_rmid_forced": "kernel.shm_rmid_forced",
		"net/ipv4/conf/eno2.100/rp_filter": "net.ipv4.conf.eno2/100.rp_filter", "x": "x",
	} {
		if got := sysctlName(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
