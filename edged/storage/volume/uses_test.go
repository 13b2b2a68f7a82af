package volume

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// A volume counts when a container of any kind mounts it or has it as a device; the others are left out, however broken
// they are.
func TestOnlyUsedVolumesAreSetUp(t *testing.T) {
	missing := v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "missing"}}
	empty := v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	mount := func(name string) []v1.VolumeMount { return []v1.VolumeMount{{Name: name, MountPath: "/" + name}} }
	pod := podWith()
	pod.Spec = v1.PodSpec{
		Volumes: []v1.Volume{
			vol("unused", missing), vol("unsupported", v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}),
			vol("unbound", v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "none"},
			}),
			vol("file", empty), vol("init", empty), vol("app", empty), vol("debug", empty),
		},
		InitContainers: []v1.Container{{Name: "i", VolumeMounts: mount("init")}},
		Containers: []v1.Container{
			{
				Name: "c", VolumeMounts: mount("app"), Env: []v1.EnvVar{
					{
						Name: "V", ValueFrom: &v1.EnvVarSource{
							FileKeyRef: &v1.FileKeySelector{VolumeName: "file", Path: "a", Key: "V"},
						},
					},
				},
			},
		},
	}
	m, _ := start(t)
	if got, want := slices.Sorted(maps.Keys(setup(t, m, pod))), []string{"app", "init"}; !slices.Equal(got, want) {
		t.Errorf("volumes that are set up: got %v, want %v", got, want)
	}
	if dir, err := m.podVolume(uid, pluginEmptyDir, "file"); err != nil || isThere(dir) {
		t.Errorf("folder of an unused volume: got one at %s (%v), want none", dir, err)
	}
	// A container that comes later brings its volume.
	debug := v1.EphemeralContainerCommon{Name: "d", VolumeMounts: mount("debug")}
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: debug}}
	vols := setup(t, m, pod)
	if info, err := os.Stat(vols["debug"].Path); err != nil || !info.IsDir() {
		t.Errorf("volume of an ephemeral container: got %v, %v, want a folder", info, err)
	}
	measured, err := m.MeasureVolumes(t.Context(), pod)
	var names []string
	for _, one := range measured {
		names = append(names, one.Name)
	}
	if diff := cmp.Diff([]string{"init", "app", "debug"}, names); err != nil || diff != "" {
		t.Errorf("volumes that are measured (-want +got):\n%s%v", diff, err)
	}
	// A broken volume counts once a container has it.
	pod.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "unused", DevicePath: "/dev/x"}}
	if _, err := m.Setup(t.Context(), pod); err == nil {
		t.Error("setup of a missing secret that a container has: got no error, want one")
	}
}
