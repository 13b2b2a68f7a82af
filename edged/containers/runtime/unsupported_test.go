package runtime

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func unsupportedPaths(pod *v1.Pod) []string {
	var paths []string
	for _, f := range unsupportedFields(pod) {
		paths = append(paths, f.path)
	}
	return paths
}

func TestUnsupported(t *testing.T) {
	for path, c := range map[string]struct {
		set    func(*v1.PodSpec)
		refuse bool
	}{
		"spec.os.name":        {func(s *v1.PodSpec) { s.OS = &v1.PodOS{Name: v1.Windows} }, true},
		"spec.resourceClaims": {func(s *v1.PodSpec) { s.ResourceClaims = []v1.PodResourceClaim{{}} }, true},
		"spec.containers[0].securityContext.procMount": {func(s *v1.PodSpec) {
			s.Containers[0].SecurityContext = &v1.SecurityContext{ProcMount: ptr.To(v1.UnmaskedProcMount)}
		}, true},
		"spec.resources.claims": {func(s *v1.PodSpec) {
			s.Resources = &v1.ResourceRequirements{Claims: []v1.ResourceClaim{{}}}
		}, true},
		"spec.containers[0].resources.claims": {func(s *v1.PodSpec) {
			s.Containers[0].Resources.Claims = []v1.ResourceClaim{{}}
		}, true},
	} {
		pod := testPod(v1.RestartPolicyAlways, 1, 2)
		c.set(&pod.Spec)
		if diff := cmp.Diff([]string{path}, unsupportedPaths(pod)); diff != "" {
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
	pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
		{ResourceName: "cpu", RestartPolicy: v1.RestartContainer},
	}
	if got := unsupportedPaths(pod); len(got) > 0 {
		t.Errorf("an ordinary pod: %v, want none", got)
	}
}

// TestExtendedResourceClaim: a pod whose extended resource the scheduler satisfied with a ResourceClaim is refused, and
// the message names the claim, the resource and the container. Without the claim's device it would run as if it had
// one.
func TestExtendedResourceClaim(t *testing.T) {
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	if err := Refused(pod); err != nil {
		t.Errorf("extended resource without a claim: refused %v, want nil", err)
	}
	pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "web-extended-resources-x2z",
		RequestMappings: []v1.ContainerExtendedResourceRequest{
			{ContainerName: "c0", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
		},
	}
	want := `status.extendedResourceClaimStatus: example.com/gpu of container c0 was allocated by ResourceClaim ` +
		`"web-extended-resources-x2z": ` + claimsRefused
	if err := Refused(pod); err == nil || err.Error() != want {
		t.Errorf("refused %v\nwant %s", err, want)
	}
	// A claim without mappings, as of a newer scheduler, is refused as well.
	pod.Status.ExtendedResourceClaimStatus.RequestMappings = nil
	if err := Refused(pod); err == nil || !strings.Contains(err.Error(), `"web-extended-resources-x2z"`) {
		t.Errorf("refused %v, want an error that names the claim", err)
	}
	pod.Status.ExtendedResourceClaimStatus.RequestMappings = []v1.ContainerExtendedResourceRequest{
		{ContainerName: "c0", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
	}
	g := newRig(t)
	res := g.sync(pod)
	if res.SandboxErr == nil || !strings.Contains(res.SandboxErr.Message, "web-extended-resources-x2z") ||
		len(g.fake.Calls("RunPodSandbox")) > 0 {
		t.Errorf("sync: %+v, want an error that names the claim and no sandbox", res)
	}
	if got := strings.Join(g.events.list, "\n"); !strings.Contains(got, "FailedCreatePodSandBox") ||
		!strings.Contains(got, "web-extended-resources-x2z") {
		t.Errorf("events %q, want FailedCreatePodSandBox with the claim", got)
	}
}

// TestUnsupportedPods: a refused pod gets no sandbox and says why; a pod that lacks less runs, and says what.
func TestUnsupportedPods(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.OS = &v1.PodOS{Name: v1.Windows}
	res := g.sync(pod)
	if res.SandboxErr == nil || !strings.Contains(res.SandboxErr.Message, "spec.os.name: ") ||
		len(g.fake.Calls("RunPodSandbox")) > 0 {
		t.Errorf("sync: %+v, want an error about spec.os.name and no sandbox", res)
	}
	pod.Spec.OS = nil
	pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{}}
	if c := g.syncUntilSteady(pod).Container("c0"); !c.Running() {
		t.Errorf("container with options of another system = %+v, want it running", c)
	}
	if want :=
		"UnsupportedField This node does not act on: " +
			"spec.containers[0].securityContext.windowsOptions"; !strings.Contains(strings.Join(g.events.list, "\n"),
		want) {
		t.Errorf("events %q, want %q", g.events.list, want)
	}
	// A pod that runs is adopted, also when it could not be started here.
	pod.Spec.OS = &v1.PodOS{Name: v1.Windows}
	if res := g.sync(pod); res.Changed || res.Err != nil {
		t.Errorf("sync of a running pod = %+v, want no change, no error", res)
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
