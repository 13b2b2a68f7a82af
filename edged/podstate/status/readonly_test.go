package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestRecursiveReadOnly(t *testing.T) {
	const disabled, enabled = v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyEnabled
	const possible = v1.RecursiveReadOnlyIfPossible
	for _, tc := range []struct {
		name        string
		mount       v1.VolumeMount
		old, recent bool // with a runtime that cannot, and one that can
		oldErr, err string
	}{
		{"not asked for", v1.VolumeMount{Name: "v", ReadOnly: true}, false, false, "", ""},
		{"disabled", v1.VolumeMount{Name: "v", ReadOnly: true, RecursiveReadOnly: ptr.To(disabled)}, false, false, "",
			""},
		{"if possible", v1.VolumeMount{Name: "v", ReadOnly: true, RecursiveReadOnly: ptr.To(possible)}, false, true, "",
			""},
		{"enabled", v1.VolumeMount{Name: "v", ReadOnly: true, RecursiveReadOnly: ptr.To(enabled)}, false, true,
			`volume "v" requested recursive read-only mode, but it is not supported by the runtime`, ""},
		{"with propagation None", v1.VolumeMount{
			Name:              "v",
			ReadOnly:          true,
			RecursiveReadOnly: ptr.To(possible),
			MountPropagation:  ptr.To(v1.MountPropagationNone),
		}, false, true, "", ""},
		{
			"with propagation", v1.VolumeMount{
				Name:              "v",
				ReadOnly:          true,
				RecursiveReadOnly: ptr.To(enabled),
				MountPropagation:  ptr.To(v1.MountPropagationHostToContainer),
			}, false, false,
			`volume "v" requested recursive read-only mode, but it is not compatible with propagation "HostToContainer"`,
			`volume "v" requested recursive read-only mode, but it is not compatible with propagation "HostToContainer"`,
		},
		{
			"writable", v1.VolumeMount{Name: "v", RecursiveReadOnly: ptr.To(enabled)}, false, false,
			`volume "v" requested recursive read-only mode, but it is not read-only`,
			`volume "v" requested recursive read-only mode, but it is not read-only`,
		},
		{"unknown", v1.VolumeMount{Name: "v", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyMode("x"))},
			false, false,
			`unknown recursive read-only mode "x"`, `unknown recursive read-only mode "x"`},
	} {
		for _, can := range []bool{false, true} {
			want, wantErr := tc.old, tc.oldErr
			if can {
				want, wantErr = tc.recent, tc.err
			}
			got, err := RecursiveReadOnly(&tc.mount, func() bool { return can })
			if got != want || (err == nil) != (wantErr == "") || err != nil && err.Error() != wantErr {
				t.Errorf("%s, runtime can: %v: %v, %v; want %v, %s", tc.name, can, got, err, want, wantErr)
			}
		}
	}
}

func TestMountStatuses(t *testing.T) {
	mounts := []v1.VolumeMount{
		{Name: "a", MountPath: "/a"}, {Name: "b", MountPath: "/b", ReadOnly: true},
		{Name: "c", MountPath: "/c", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)},
	}
	for mode, can := range map[v1.RecursiveReadOnlyMode]bool{
		v1.RecursiveReadOnlyDisabled: false, v1.RecursiveReadOnlyEnabled: true,
	} {
		want := []v1.VolumeMountStatus{
			{Name: "a", MountPath: "/a"}, {
				Name:              "b",
				MountPath:         "/b",
				ReadOnly:          true,
				RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyDisabled),
			},
			{Name: "c", MountPath: "/c", ReadOnly: true, RecursiveReadOnly: &mode},
		}
		if diff := cmp.Diff(want, mountStatuses(mounts, func() bool { return can })); diff != "" {
			t.Errorf("mountStatuses() mismatch (-want +got):\n%s", diff)
		}
	}
	if got := mountStatuses(nil, nil); got != nil {
		t.Errorf("mountStatuses(nil) = %v, want nil", got)
	}
}
