package security

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/observed"
)

func TestSysctls(t *testing.T) {
	for _, tc := range []struct {
		kernel  string
		allowed []string
		set     []string
		spec    v1.PodSpec
		want    string
	}{
		{kernel: "6.1.0-13-arm64", set: []string{"kernel.shm_rmid_forced", "net/ipv4/tcp_rmem", "net.ipv4.tcp_keepalive_probes"}},
		{kernel: "6.1.0", set: []string{"net.ipv4.tcp_syncookies", "kernel.msgmax"}, want: `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		{kernel: "6.1.0", set: []string{"vm.swappiness"}, want: `forbidden sysctl: "vm.swappiness" not allowlisted`},
		{kernel: "4.14.1", set: []string{"net.ipv4.tcp_rmem"}, want: `forbidden sysctl: "net.ipv4.tcp_rmem" not allowlisted`},
		{kernel: "4.15-rc1", set: []string{"net.ipv4.tcp_rmem"}},
		{kernel: "nonsense", set: []string{"net.ipv4.tcp_fin_timeout"}, want: `forbidden sysctl: "net.ipv4.tcp_fin_timeout" not allowlisted`},
		{kernel: "nonsense", set: []string{"net.ipv4.tcp_syncookies"}},
		{kernel: "6.1.0", allowed: []string{"kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/*"}, set: []string{"kernel.msgmax", "net.core.somaxconn", "net/ipv4/conf/eth0.1/rp_filter"}},
		{kernel: "6.1.0", allowed: []string{"net.core.somaxconn"}, set: []string{"net.core.somaxconn2"}, want: `forbidden sysctl: "net.core.somaxconn2" not allowlisted`},
		{kernel: "6.1.0", set: []string{"net.ipv4.tcp_syncookies"}, spec: v1.PodSpec{HostNetwork: true}, want: `forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled`},
		{kernel: "6.1.0", set: []string{"net.ipv4.tcp_syncookies"}, spec: v1.PodSpec{HostIPC: true}},
		{kernel: "6.1.0", set: []string{"kernel.shm_rmid_forced"}, spec: v1.PodSpec{HostIPC: true}, want: `forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host ipc enabled`},
	} {
		s, err := NewSysctls(tc.kernel, tc.allowed)
		if err != nil {
			t.Fatal(err)
		}
		pod := &v1.Pod{Spec: tc.spec}
		pod.Spec.SecurityContext = &v1.PodSecurityContext{}
		for _, name := range tc.set {
			pod.Spec.SecurityContext.Sysctls = append(pod.Spec.SecurityContext.Sysctls, v1.Sysctl{Name: name, Value: "1"})
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
		if _, err := NewSysctls("6.1", []string{bad}); err == nil || !strings.Contains(err.Error(), "allowedUnsafeSysctls: ") {
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
	const none, unnamed = "Cannot enforce AppArmor: AppArmor is not enabled on the host", "Cannot enforce AppArmor: localhostProfile must be set if the profile's type is Localhost"
	for name, tc := range map[string]struct {
		spec       v1.PodSpec
		with, lack string // what is said where there is AppArmor, and where not
	}{
		"nothing":     {v1.PodSpec{SecurityContext: &v1.PodSecurityContext{}}, "", ""},
		"unconfined":  {ofPod(armor(v1.AppArmorProfileTypeUnconfined, nil)), "", ""},
		"default":     {ofPod(armor(v1.AppArmorProfileTypeRuntimeDefault, nil)), "", none},
		"container's": {ofContainer(armor(v1.AppArmorProfileTypeLocalhost, ptr.To("mine"))), "", none},
		"no name":     {ofContainer(armor(v1.AppArmorProfileTypeLocalhost, ptr.To(" "))), unnamed, none},
	} {
		for host, want := range map[Host]string{{AppArmor: true}: tc.with, {}: tc.lack} {
			var reason *observed.Reason
			if want != "" {
				reason = &observed.Reason{Reason: "AppArmor", Message: want}
			}
			if diff := cmp.Diff(reason, host.CheckAppArmor(&v1.Pod{Spec: tc.spec})); diff != "" {
				t.Errorf("%s, %+v (-want +got)\n%s", name, host, diff)
			}
		}
	}
}

func TestGroups(t *testing.T) {
	strict := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict)}}}
	merge := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyMerge)}}}
	want := &observed.Reason{Reason: "SupplementalGroupsPolicyNotSupported", Message: "SupplementalGroupsPolicy=Strict is not supported in this node"}
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

func TestLook(t *testing.T) {
	root := t.TempDir()
	if got := Look(root); got != (Host{}) {
		t.Errorf("an empty node: %+v, want nothing", got)
	}
	for path, text := range map[string]string{"sys/module/apparmor/parameters/enabled": "Y\n", "sys/fs/selinux/enforce": "1", "proc/sys/kernel/osrelease": "6.1.0\n"} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := Look(root); got != (Host{AppArmor: true, SELinux: true, Kernel: "6.1.0"}) {
		t.Errorf("Look() = %+v, want AppArmor, SELinux and kernel 6.1.0", got)
	}
}
