package security

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

func TestSysctls(t *testing.T) {
	for _, tc := range []struct {
		kernel  string
		allowed []string
		set     []string
		spec    v1.PodSpec
		want    string
	}{
		{
			kernel: "6.1.0-13-arm64", set: []string{
				"kernel.shm_rmid_forced", "net/ipv4/tcp_rmem", "net.ipv4.tcp_keepalive_probes",
			},
		},
		{
			kernel: "6.1.0", set: []string{"net.ipv4.tcp_syncookies", "kernel.msgmax"},
			want: `forbidden sysctl: "kernel.msgmax" not allowlisted`,
		},
		{kernel: "6.1.0", set: []string{"vm.swappiness"}, want: `forbidden sysctl: "vm.swappiness" not allowlisted`},
		{
			kernel: "4.14.1", set: []string{"net.ipv4.tcp_rmem"},
			want: `forbidden sysctl: "net.ipv4.tcp_rmem" not allowlisted`,
		},
		{kernel: "4.15-rc1", set: []string{"net.ipv4.tcp_rmem", "net.ipv4.tcp_slow_start_after_idle"}},
		{kernel: "4.6.0", set: []string{"net/ipv4/tcp_notsent_lowat"}},
		{
			kernel: "4.14.1", set: []string{"net.ipv4.tcp_slow_start_after_idle"},
			want: `forbidden sysctl: "net.ipv4.tcp_slow_start_after_idle" not allowlisted`,
		},
		{
			kernel: "nonsense", set: []string{"net.ipv4.tcp_fin_timeout"},
			want: `forbidden sysctl: "net.ipv4.tcp_fin_timeout" not allowlisted`,
		},
		{kernel: "nonsense", set: []string{"net.ipv4.tcp_syncookies"}},
		{
			kernel: "6.1.0", allowed: []string{"kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/*"},
			set: []string{"kernel.msgmax", "net.core.somaxconn", "net/ipv4/conf/eth0.1/rp_filter"},
		},
		{
			kernel:  "6.1.0",
			allowed: []string{"net.core.somaxconn"},
			set:     []string{"net.core.somaxconn2"},
			want:    `forbidden sysctl: "net.core.somaxconn2" not allowlisted`,
		},
		{
			kernel: "6.1.0",
			set:    []string{"net.ipv4.tcp_syncookies"},
			spec:   v1.PodSpec{HostNetwork: true},
			want:   `forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled`,
		},
		{kernel: "6.1.0", set: []string{"net.ipv4.tcp_syncookies"}, spec: v1.PodSpec{HostIPC: true}},
		{
			kernel: "6.1.0",
			set:    []string{"kernel.shm_rmid_forced"},
			spec:   v1.PodSpec{HostIPC: true},
			want:   `forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host ipc enabled`,
		},
	} {
		s, err := NewSysctls(tc.kernel, tc.allowed)
		if err != nil {
			t.Fatal(err)
		}
		pod := &v1.Pod{Spec: tc.spec}
		pod.Spec.SecurityContext = &v1.PodSecurityContext{}
		for _, name := range tc.set {
			pod.Spec.SecurityContext.Sysctls = append(pod.Spec.SecurityContext.Sysctls,
				v1.Sysctl{Name: name, Value: "1"})
		}
		var want *observed.Reason
		if tc.want != "" {
			want = &observed.Reason{Reason: "SysctlForbidden", Message: tc.want}
		}
		if diff := cmp.Diff(want, s.Check(pod)); diff != "" {
			t.Errorf("%v on %s (-want +got)\n%s", tc.set, tc.kernel, diff)
		}
	}
	if s, err := NewSysctls("6.1", nil); err != nil {
		t.Errorf("NewSysctls(6.1): %v, want no error", err)
	} else if got := s.Check(&v1.Pod{}); got != nil {
		t.Errorf("Check(a pod without a security context) = %v, want nil", got)
	}
	for _, bad := range []string{"vm.*", "kernel.*", "*", "", "net.*.x", "kernel.sem2"} {
		if _, err := NewSysctls("6.1", []string{bad}); err == nil ||
			!strings.Contains(err.Error(), "allowedUnsafeSysctls: ") {
			t.Errorf("%q: %v, want an error with \"allowedUnsafeSysctls: \"", bad, err)
		}
	}
}

func armor(typ v1.AppArmorProfileType, name *string) *v1.AppArmorProfile {
	return &v1.AppArmorProfile{Type: typ, LocalhostProfile: name}
}

func TestAppArmor(t *testing.T) {
	ofPod := func(p *v1.AppArmorProfile) v1.PodSpec {
		return v1.PodSpec{SecurityContext: &v1.PodSecurityContext{AppArmorProfile: p}}
	}
	ofContainer := func(p *v1.AppArmorProfile) v1.PodSpec {
		return v1.PodSpec{Containers: []v1.Container{{}, {SecurityContext: &v1.SecurityContext{AppArmorProfile: p}}}}
	}
	const none, unnamed = "Cannot enforce AppArmor: AppArmor is not enabled on the host", "Cannot enforce AppArmor: " +
		"localhostProfile must be set if the profile's type is Localhost"
	for name, tc := range map[string]struct {
		spec        v1.PodSpec
		with, lack  string // what is said where there is AppArmor, and where not
		annotations map[string]string
	}{
		"nothing":     {v1.PodSpec{SecurityContext: &v1.PodSecurityContext{}}, "", "", nil},
		"unconfined":  {ofPod(armor(v1.AppArmorProfileTypeUnconfined, nil)), "", "", nil},
		"default":     {ofPod(armor(v1.AppArmorProfileTypeRuntimeDefault, nil)), "", none, nil},
		"container's": {ofContainer(armor(v1.AppArmorProfileTypeLocalhost, ptr.To("mine"))), "", none, nil},
		"no name":     {ofContainer(armor(v1.AppArmorProfileTypeLocalhost, ptr.To(" "))), unnamed, none, nil},
		"an annotation": {v1.PodSpec{Containers: []v1.Container{{Name: "a"}}}, "", none,
			map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "a": "localhost/x"}},
		"an annotation without a name": {v1.PodSpec{Containers: []v1.Container{{Name: "a"}}}, unnamed, none,
			map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "a": "localhost/"}},
	} {
		for armored, want := range map[bool]string{true: tc.with, false: tc.lack} {
			host := Host{AppArmor: armored}
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}, Spec: tc.spec}
			var reason *observed.Reason
			if want != "" {
				reason = &observed.Reason{Reason: "AppArmor", Message: want}
			}
			if diff := cmp.Diff(reason, host.CheckAppArmor(pod)); diff != "" {
				t.Errorf("%s, %+v (-want +got)\n%s", name, host, diff)
			}
		}
	}
}

func TestGroups(t *testing.T) {
	strict := &v1.Pod{
		Spec: v1.PodSpec{
			SecurityContext: &v1.PodSecurityContext{
				SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict),
			},
		},
	}
	merge := &v1.Pod{
		Spec: v1.PodSpec{
			SecurityContext: &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyMerge)},
		},
	}
	want := &observed.Reason{
		Reason:  "SupplementalGroupsPolicyNotSupported",
		Message: "SupplementalGroupsPolicy=Strict is not supported in this node",
	}
	if diff := cmp.Diff(want, CheckGroups(strict, false, true)); diff != "" {
		t.Errorf("CheckGroups() mismatch (-want +got):\n%s", diff)
	}
	for name, got := range map[string]*observed.Reason{
		"a node that supports it":     CheckGroups(strict, true, true),
		"a runtime not asked yet":     CheckGroups(strict, false, false),
		"the policy Merge":            CheckGroups(merge, false, true),
		"a pod without such a policy": CheckGroups(&v1.Pod{}, false, true),
	} {
		if got != nil {
			t.Errorf("CheckGroups for %s = %+v, want nil", name, got)
		}
	}
}

func TestReadHost(t *testing.T) {
	root := t.TempDir()
	if diff := cmp.Diff(Host{}, ReadHost(root)); diff != "" {
		t.Errorf("an empty node mismatch (-want +got):\n%s", diff)
	}
	for path, text := range map[string]string{
		"sys/module/apparmor/parameters/enabled": "Y\n", "sys/fs/selinux/enforce": "1",
		"proc/sys/kernel/osrelease":                                         "6.1.0\n",
		"sys/devices/system/cpu/cpu10/thermal_throttle/core_throttle_count": "0\n",
		"sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count":  "0\n",
		"sys/devices/system/cpu/cpufreq/thermal_throttle":                   "",
		"sys/devices/system/cpu/cpu3/online":                                "1\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := Host{AppArmor: true, SELinux: true, Kernel: "6.1.0", Thermal: []string{
		"/sys/devices/system/cpu/cpu2/thermal_throttle", "/sys/devices/system/cpu/cpu10/thermal_throttle",
	}}
	if diff := cmp.Diff(want, ReadHost(root)); diff != "" {
		t.Errorf("ReadHost() mismatch (-want +got):\n%s", diff)
	}
}

// TestAppArmorOf: a container's own profile comes first, then the annotation for it, then the pod's.
func TestAppArmorOf(t *testing.T) {
	const key = v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	own, pods := armor(v1.AppArmorProfileTypeUnconfined, nil), armor(v1.AppArmorProfileTypeRuntimeDefault, nil)
	for name, tc := range map[string]struct {
		own, pods   *v1.AppArmorProfile
		annotations map[string]string
		want        *v1.AppArmorProfile
	}{
		"nothing":   {},
		"the pod's": {pods: pods, want: pods},
		"own": {
			own:         own,
			pods:        pods,
			annotations: map[string]string{key + "a": "runtime/default"},
			want:        own,
		},
		"annotation: default": {annotations: map[string]string{key + "a": "runtime/default"}, want: pods},
		"annotation: unconfined": {pods: pods, annotations: map[string]string{key + "a": "unconfined"},
			want: own},
		"annotation: localhost": {pods: pods, annotations: map[string]string{key + "a": "localhost/x"},
			want: armor(v1.AppArmorProfileTypeLocalhost, ptr.To("x"))},
		"annotation: nonsense":             {pods: pods, annotations: map[string]string{key + "a": "x"}, want: pods},
		"annotation for another container": {annotations: map[string]string{key + "b": "runtime/default"}},
	} {
		c := v1.Container{Name: "a", SecurityContext: &v1.SecurityContext{AppArmorProfile: tc.own}}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}, Spec: v1.PodSpec{
			SecurityContext: &v1.PodSecurityContext{AppArmorProfile: tc.pods}, Containers: []v1.Container{c},
		}}
		if diff := cmp.Diff(tc.want, AppArmor(pod, &c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
