package runtime

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

func TestFeaturesOf(t *testing.T) {
	handlers := func(list ...*runtimeapi.RuntimeHandler) *runtimeapi.StatusResponse {
		return &runtimeapi.StatusResponse{
			RuntimeHandlers: list, Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
		}
	}
	able := &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true, RecursiveReadOnlyMounts: true}
	config := func(text string) *runtimeapi.StatusResponse {
		return &runtimeapi.StatusResponse{Info: map[string]string{"config": text}}
	}
	for name, tc := range map[string]struct {
		name, version string
		status        *runtimeapi.StatusResponse
		want          Features
	}{
		"containerd 2": {
			"containerd", "v2.1.4", handlers(&runtimeapi.RuntimeHandler{Features: able},
				&runtimeapi.RuntimeHandler{Name: "runc", Features: able}, &runtimeapi.RuntimeHandler{Name: "runsc"}),
			Features{
				Handlers:                 map[string]Handler{"": {true, true}, "runc": {true, true}, "runsc": {}},
				SupplementalGroupsPolicy: true, ImageVolumes: true,
			},
		},
		"containerd 1.6": {
			"containerd", "1.6.20~ds1", config(`{"containerd":{"runtimes":{"runc":{"runtimeType":"x"},"kata":{}}}}`),
			Features{Handlers: map[string]Handler{"": {}, "runc": {}, "kata": {}}},
		},
		"containerd 2.0":        {"containerd", "v2.0.9", handlers(), Features{SupplementalGroupsPolicy: true}},
		"no configuration":      {"containerd", "1.6.20", config(`nonsense`), Features{}},
		"another":               {"cri-o", "1.31.0", &runtimeapi.StatusResponse{}, Features{ImageVolumes: true}},
		"another, older":        {"cri-o", "1.30.9", nil, Features{}},
		"one that is not known": {"other", "0.1", nil, Features{ImageVolumes: true}},
		"a strange version":     {"containerd", "main", nil, Features{ImageVolumes: true}},
	} {
		tc.want.Name, tc.want.Version = tc.name, tc.version
		got := featuresOf(&runtimeapi.VersionResponse{RuntimeName: tc.name, RuntimeVersion: tc.version}, tc.status)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestLacks: what a runtime is too old for is refused by the name of the field, with what it needs; and what it can is
// passed on.
func TestLacks(t *testing.T) {
	old := &runtimeapi.StatusResponse{}
	able := &runtimeapi.StatusResponse{
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}},
		},
	}
	for path, set := range map[string]func(*v1.PodSpec){
		"spec.hostUsers": func(s *v1.PodSpec) { s.HostUsers = ptr.To(false) },
		"spec.securityContext.supplementalGroupsPolicy": func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{
				SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict),
			}
		},
		"spec.volumes[0].image": func(s *v1.PodSpec) {
			s.Volumes = []v1.Volume{
				{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "x"}}},
			}
		},
	} {
		t.Run(path, func(t *testing.T) {
			pod := testPod(v1.RestartPolicyAlways, 0, 1)
			set(&pod.Spec)
			g := newRig(t)
			g.fake.Is("1.6.20", old)
			res := g.sync(pod)
			if res.SandboxErr == nil || !strings.HasPrefix(res.SandboxErr.Message, path+": ") ||
				!strings.Contains(res.SandboxErr.Message, "containerd 1.6.20") ||
				len(g.fake.Calls("RunPodSandbox")) > 0 {
				t.Errorf("sync = %+v, want an error of %s that names containerd 1.6.20, and no sandbox", res, path)
			}
			// Another runtime is there, and was asked.
			g.fake.Is("2.1.0", able)
			if _, _, err := g.Learn(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !g.syncUntilSteady(pod).Container("c0").Running() {
				t.Errorf("on a new one: %v; want c0 to run", g.events.list)
			}
		})
	}
}

// TestHandler: a pod's sandbox is run by the handler of its class, with its overhead; and not without one.
func TestHandler(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.Overhead = v1.ResourceList{"memory": resource.MustParse("1Mi")}
	fault := errors.New("no such class")
	g.opts.Handler = func(context.Context, *v1.Pod) (string, error) { return "kata", fault }
	g.opts.SandboxResources = func(pod *v1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
		return &runtimeapi.LinuxContainerResources{CpuShares: 7},
			&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: pod.Spec.Overhead.Memory().Value()}
	}
	pod.Spec.SecurityContext = &v1.PodSecurityContext{
		SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("x.json")},
	}
	if res := g.sync(pod); res.SandboxErr == nil || res.SandboxErr.Message != "no such class" ||
		len(g.fake.Calls("RunPodSandbox")) > 0 {
		t.Errorf("sync: %+v, want the error \"no such class\" and no sandbox", res)
	}
	fault = nil
	g.syncUntilSteady(pod)
	req, ok := g.fake.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest)
	if !ok || req.RuntimeHandler != "kata" || req.Config.Linux.Overhead.MemoryLimitInBytes != 1<<20 ||
		req.Config.Linux.Resources.CpuShares != 7 {
		t.Errorf("the request is %+v, want the handler kata, 7 shares and an overhead of 1 MiB", req)
	}
	if got := req.GetConfig().GetLinux().GetSecurityContext().
		GetSeccomp(); got.GetProfileType() != runtimeapi.SecurityProfile_RuntimeDefault {
		t.Errorf("the sandbox's profile is %v, want RuntimeDefault whatever the pod's is", got)
	}
}

// TestUserNamespace: the sandbox, the containers and their mounts have the pod's ids; without ids of its own, those of
// the node.
func TestUserNamespace(t *testing.T) {
	ids := []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
	for _, own := range []bool{true, false} {
		g := newRig(t)
		g.fake.Is("2.1.0", &runtimeapi.StatusResponse{
			RuntimeHandlers: []*runtimeapi.RuntimeHandler{
				{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}},
			},
		})
		pod := testPod(v1.RestartPolicyAlways, 0, 1)
		pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
		want := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
		if own {
			pod.Spec.HostUsers = ptr.To(false)
			want = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
			g.inputs.userns = want
		}
		if !g.syncUntilSteady(pod).Container("c0").Running() {
			t.Fatalf("the container does not run, want it to; events %q", g.events.list)
		}
		sandbox, _ := g.fake.Calls("RunPodSandbox")[0].Request.(*runtimeapi.RunPodSandboxRequest)
		if got := sandbox.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions; got.String() != want.String() {
			t.Errorf("own %v: sandbox %v, want %v", own, got, want)
		}
		container, _ := g.fake.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest)
		if got := container.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions; got.String() != want.String() {
			t.Errorf("own %v: container %v, want %v", own, got, want)
		}
		if len(container.Config.Mounts) == 0 {
			t.Errorf("mounts = %v, want some", container.Config.Mounts)
		}
		for _, m := range container.Config.Mounts {
			if (len(m.UidMappings) == 1) != own || (len(m.GidMappings) == 1) != own {
				t.Errorf("own %v: mount %v, want mappings only if it has its own", own, m)
			}
		}
	}
}

// images has some images, and pulls none.
type images map[string]string

func (i images) EnsureImage(
	_ context.Context, _ *v1.Pod, c *v1.Container, _ []v1.Secret, _ *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	if id := i[c.Image+" "+string(c.ImagePullPolicy)]; id != "" {
		return id, nil, time.Time{}
	}
	return "", &observed.Reason{Reason: "ErrImagePull", Message: "no " + c.Image}, time.Now().Add(time.Hour)
}

func TestImageVolumes(t *testing.T) {
	g := newRig(t)
	g.fake.Is("2.1.0", nil)
	have := images{"c ": "sha256:main"}
	g.opts.Images = have
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.Volumes = []v1.Volume{
		{
			Name: "v", VolumeSource: v1.VolumeSource{
				Image: &v1.ImageVolumeSource{Reference: "data", PullPolicy: v1.PullNever},
			},
		},
	}
	c := &pod.Spec.Containers[0]
	c.Image = "c"
	c.VolumeMounts = []v1.VolumeMount{
		{Name: "v", MountPath: "/all"}, {Name: "v", MountPath: "sub", SubPathExpr: "a/$(IPS)"},
	}
	res := g.sync(pod)
	if got := res.Reasons["c0"]; got.Reason != "ErrImagePull" || got.Message != "no data" || res.RetryAt.IsZero() ||
		len(g.fake.Calls("CreateContainer")) > 0 {
		t.Errorf("sync: %+v, want ErrImagePull \"no data\", a time to retry, and no container", res)
	}
	have["data Never"] = "sha256:data"
	g.syncUntilSteady(pod)
	req, ok := g.fake.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest)
	if !ok {
		t.Fatalf("request of CreateContainer = %T, want %T", g.fake.Calls("CreateContainer")[0].Request, req)
	}
	var got []string
	for _, m := range req.Config.Mounts {
		if m.Image != nil {
			got = append(got,
				strings.Join([]string{m.Image.Image, m.Image.UserSpecifiedImage, m.ContainerPath, m.ImageSubPath,
					m.HostPath}, " "))
			if !m.Readonly {
				t.Errorf("image mount = %v, want it read-only", m)
			}
		}
	}
	if diff := cmp.Diff([]string{"sha256:data data /all  ", "sha256:data data /sub a/10.1.0.3 "}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, bad := range []string{"../x", "/etc", "a/../../b"} {
		c.VolumeMounts[0].SubPath = bad
		if _, err := imageMounts(pod, c, nil, nil); err == nil ||
			!strings.Contains(err.Error(), "leads out of the image") {
			t.Errorf("subPath %s: %v, want an error with \"leads out of the image\"", bad, err)
		}
	}
}

// TestImageUser: the runtime is told who the image runs as, and is asked once for an image.
func TestImageUser(t *testing.T) {
	for name, tc := range map[string]struct {
		image   *runtimeapi.Image
		pod     *v1.PodSecurityContext
		want    string
		refused string
	}{
		"nobody": {&runtimeapi.Image{}, nil, "0:", ""},
		"number": {&runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 7}}, nil, "7:", ""},
		"name":   {&runtimeapi.Image{Username: "app"}, nil, ":app", ""},
		"pod's own": {
			&runtimeapi.Image{
				Username: "app",
			}, &v1.PodSecurityContext{RunAsUser: ptr.To[int64](9), RunAsNonRoot: ptr.To(true)}, "9:", "",
		},
		"number, not root": {
			&runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 7}},
			&v1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}, "7:", "",
		},
		"root, must not be": {
			&runtimeapi.Image{}, &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}, "",
			`container has runAsNonRoot and image will run as root (pod: "pod_default(uid-1)", container: c0)`,
		},
		"name, must not be": {&runtimeapi.Image{Username: "app"}, &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true)},
			"", `container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root`},
		"pod's own root": {
			&runtimeapi.Image{}, &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](0)}, "",
			"container's runAsUser breaks non-root policy",
		},
		"a name that is empty": {nil, nil, "", "the runtime no longer has it"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.fake.SetImage(tc.image)
			pod := testPod(v1.RestartPolicyAlways, 0, 1)
			pod.Name, pod.UID = "pod", "uid-1"
			pod.Spec.SecurityContext = tc.pod
			c := &pod.Spec.Containers[0]
			for range 2 {
				sc, err := g.securityContext(pod, c, nil)
				if err != nil {
					t.Fatal(err)
				}
				err = g.completeUser(t.Context(), pod, c, "sha256:abc", sc)
				if (err != nil) != (tc.refused != "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
					t.Fatalf("refused: %v, want %q", err, tc.refused)
				}
				got := sc.RunAsUsername
				if got = ":" + got; sc.RunAsUser != nil {
					got = resource.NewQuantity(sc.RunAsUser.Value, resource.DecimalSI).String() + got
				}
				if err == nil && got != tc.want {
					t.Errorf("runs as %s, want %s", got, tc.want)
				}
			}
			if n := len(g.fake.Calls("ImageStatus")); tc.image != nil && n > 1 {
				t.Errorf("the image was asked for %d times, want at most one", n)
			}
		})
	}
}

func TestRelabel(t *testing.T) {
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.Volumes = []v1.Volume{{Name: "own", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv"}}},
		{Name: "claim", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = []v1.VolumeMount{
		{Name: "own", MountPath: "/own"}, {Name: "host", MountPath: "/host"},
		{Name: "host", MountPath: "host-sub", SubPath: "x"},
		{Name: "claim", MountPath: "/claim"}, {Name: "claim", MountPath: "/claim-sub", SubPathExpr: "x"},
	}
	want := map[string]bool{"/own": true, "/host": false, "/host-sub": false, "/claim": true, "/claim-sub": false,
		"/etc/hosts": true, "/dev/termination-log": true, "/device": false}
	at := map[string]string{"/host": "/srv", "/device": "/usr/lib/device"}
	var mounts []*runtimeapi.Mount
	for path := range want {
		host, ok := at[path]
		if !ok {
			host = "/root/pods/uid" + path
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: path, HostPath: host})
	}
	relabel(pod, c, "/root/pods", mounts)
	for _, m := range mounts {
		if m.SelinuxRelabel != want[m.ContainerPath] {
			t.Errorf("%s: %v, want %v", m.ContainerPath, m.SelinuxRelabel, want[m.ContainerPath])
		}
	}
}

// TestPluginAnnotations: a container has the annotations of its device plugin, except where they would change what it
// is known by.
func TestPluginAnnotations(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	g.inputs.annotations = map[string]string{"example.com/a": "b", annotationHash: "0", annotationRestartCount: "7"}
	g.syncUntilSteady(pod)
	req, ok := g.fake.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest)
	if !ok {
		t.Fatal("want a request to create a container")
	}
	want := containerAnnotations(pod, &pod.Spec.Containers[0], 0)
	want["example.com/a"] = "b"
	if diff := cmp.Diff(want, req.Config.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}
