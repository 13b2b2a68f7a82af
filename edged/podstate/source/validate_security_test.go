package source

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestValidateSecurity(t *testing.T) {
	for want, set := range map[string]func(*v1.PodSpec){
		"": func(s *v1.PodSpec) {
			s.HostUsers = ptr.To(false)
			s.SecurityContext = &v1.PodSecurityContext{
				RunAsUser:                ptr.To[int64](1),
				SupplementalGroups:       []int64{2},
				SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict),
				Sysctls:                  []v1.Sysctl{{Name: "a"}, {Name: "b"}},
			}
			s.Containers[0].SecurityContext = &v1.SecurityContext{
				ProcMount: ptr.To(v1.UnmaskedProcMount), AllowPrivilegeEscalation: ptr.To(false),
			}
			s.Volumes = []v1.Volume{
				{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "x"}}},
			}
			s.Containers[0].Env = []v1.EnvVar{
				{
					Name: "A", ValueFrom: &v1.EnvVarSource{
						FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "a/b", Key: "A"},
					},
				},
			}
		},
		"spec.hostNetwork": func(s *v1.PodSpec) {
			s.HostUsers, s.HostNetwork = ptr.To(false), true
		},
		"spec.hostPID": func(s *v1.PodSpec) {
			s.HostUsers, s.HostPID = ptr.To(false), true
		},
		"spec.hostIPC": func(s *v1.PodSpec) {
			s.HostUsers, s.HostIPC = ptr.To(false), true
		},
		"spec.shareProcessNamespace": func(s *v1.PodSpec) {
			s.ShareProcessNamespace, s.HostPID = ptr.To(true), true
		},
		"spec.securityContext.runAsUser": func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr.To[int64](-1)}
		},
		"spec.securityContext.fsGroup": func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1 << 40)}
		},
		"spec.securityContext.supplementalGroups[1]": func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{SupplementalGroups: []int64{1, -1}}
		},
		"spec.securityContext.supplementalGroupsPolicy": func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{
				SupplementalGroupsPolicy: ptr.To[v1.SupplementalGroupsPolicy]("x"),
			}
		},
		"spec.securityContext.sysctls[1].name": func(s *v1.PodSpec) {
			s.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "a"}, {Name: "a"}}}
		},
		"spec.containers[0].securityContext.procMount": func(s *v1.PodSpec) {
			s.Containers[0].SecurityContext = &v1.SecurityContext{ProcMount: ptr.To[v1.ProcMountType]("x")}
		},
		"spec.containers[0].securityContext: ": func(s *v1.PodSpec) {
			s.Containers[0].SecurityContext = &v1.SecurityContext{
				Privileged: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
			}
		},
		"with the capability SYS_ADMIN": func(s *v1.PodSpec) {
			s.Containers[0].SecurityContext = &v1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), Capabilities: &v1.Capabilities{
					Add: []v1.Capability{"SYS_ADMIN"},
				},
			}
		},
		"spec.volumes[0].image.reference": func(s *v1.PodSpec) {
			s.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{}}}}
		},
		"spec.volumes[0].image.pullPolicy": func(s *v1.PodSpec) {
			s.Volumes = []v1.Volume{
				{
					Name: "v", VolumeSource: v1.VolumeSource{
						Image: &v1.ImageVolumeSource{Reference: "x", PullPolicy: "x"},
					},
				},
			}
		},
		"spec.containers[0].env[0].valueFrom.fileKeyRef.path": func(s *v1.PodSpec) {
			s.Containers[0].Env = []v1.EnvVar{
				{
					Name: "A", ValueFrom: &v1.EnvVarSource{
						FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "../x", Key: "A"},
					},
				},
			}
		},
		"spec.containers[0].env[0].valueFrom.fileKeyRef.key": func(s *v1.PodSpec) {
			s.Containers[0].Env = []v1.EnvVar{
				{Name: "A", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "x"}}},
			}
		},
	} {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i:1"}}},
		}
		set(&pod.Spec)
		SetDefaults(pod)
		err := Validate(pod)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	pod := &v1.Pod{
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "x"}}},
				{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "x:1"}}}},
		},
	}
	SetDefaults(pod)
	if a, b := pod.Spec.Volumes[0].Image.PullPolicy, pod.Spec.Volumes[1].Image.PullPolicy; a != v1.PullAlways ||
		b != v1.PullIfNotPresent {
		t.Errorf("pull policies %s and %s, want PullAlways, PullIfNotPresent", a, b)
	}
}
