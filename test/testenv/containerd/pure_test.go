package containerd

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRemoval(t *testing.T) {
	rules := strings.Split(`-P PREROUTING ACCEPT
-N CNI-HOSTPORT-DNAT
-N CNI-DN-aaa
-N CNI-bbb
-N CNI-ccc
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.64.0.2/32 -m comment --comment "name: \"ec-1\" id: \"x\"" -j CNI-bbb
-A POSTROUTING -s 10.64.1.2/32 -m comment --comment "name: \"ec-10\" id: \"y\"" -j CNI-ccc
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"ec-1\" id: \"x\"" -m multiport --dports 8080 -j CNI-DN-aaa
-A CNI-DN-aaa -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.64.0.2:80
-A CNI-bbb -d 10.64.0.0/24 -m comment --comment "name: \"ec-1\" id: \"x\"" -j ACCEPT`, "\n")
	want := `*nat
-D POSTROUTING -s 10.64.0.2/32 -m comment --comment "name: \"ec-1\" id: \"x\"" -j CNI-bbb
-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"ec-1\" id: \"x\"" -m multiport --dports 8080 -j CNI-DN-aaa
-F CNI-bbb
-F CNI-DN-aaa
-X CNI-bbb
-X CNI-DN-aaa
COMMIT
`
	if diff := cmp.Diff(want, removal(rules, "ec-1")); diff != "" {
		t.Errorf("removal() (-want +got):\n%s", diff)
	}
	if got := removal(rules, "ec-2"); got != "" {
		t.Errorf("removal of a network without rules = %q, want nothing", got)
	}
	if got := emptyShared(rules); got != "" {
		t.Errorf("emptyShared() while a pod has a port = %q, want nothing", got)
	}
}

func TestEmptyShared(t *testing.T) {
	rules := strings.Split(`-P PREROUTING ACCEPT
-N CNI-HOSTPORT-DNAT
-N CNI-HOSTPORT-SETMARK
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000`, "\n")
	want := `*nat
-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-F CNI-HOSTPORT-DNAT
-F CNI-HOSTPORT-SETMARK
-X CNI-HOSTPORT-DNAT
-X CNI-HOSTPORT-SETMARK
COMMIT
`
	if diff := cmp.Diff(want, emptyShared(rules)); diff != "" {
		t.Errorf("emptyShared() (-want +got):\n%s", diff)
	}
	if got := emptyShared([]string{"-P PREROUTING ACCEPT"}); got != "" {
		t.Errorf("emptyShared() without chains = %q, want nothing", got)
	}
}

func TestMountPoints(t *testing.T) {
	text := `22 1 8:1 / / rw - ext4 /dev/sda rw
30 22 0:5 / /run/ec-1/state/a rw - tmpfs x rw
31 22 0:5 / /run/ec-10/state rw - tmpfs x rw
32 22 0:5 / /tmp/with\040blank/m rw - tmpfs x rw
`
	want := []string{"/run/ec-1/state/a", "/tmp/with blank/m"}
	if diff := cmp.Diff(want, mountPoints(text, []string{"/run/ec-1", "/tmp/with blank"})); diff != "" {
		t.Errorf("mountPoints() (-want +got):\n%s", diff)
	}
}

func TestOwnership(t *testing.T) {
	if !runtimeCommand([]string{"/usr/bin/containerd-shim-runc-v2", "-address", "/run/ec-1/containerd.sock"},
		"/run/ec-1/") {
		t.Error("runtimeCommand(a shim with our socket) = false, want true")
	}
	if runtimeCommand([]string{"tail", "-f", "/run/ec-1/x"}, "/run/ec-1/") ||
		runtimeCommand([]string{"containerd", "--config", "/run/ec-10/c"}, "/run/ec-1/") {
		t.Error("runtimeCommand(someone's tail, or another instance's containerd) = true, want false")
	}
	root := "500 400 0:99 / / rw - overlay overlay " +
		"rw,lowerdir=/tmp/ec-1/containerd/x,upperdir=/tmp/ec-1/containerd/y,workdir=/z"
	if !rootMountIn(root, "/tmp/ec-1/containerd/") || rootMountIn(root, "/tmp/ec-2/containerd/") {
		t.Error("rootMountIn() is not true for its own folder only, want that")
	}
	if !inCgroup("4:memory:/ec-1/kubepods/x", "/ec-1") || !inCgroup("0::/ec-1", "/ec-1") ||
		inCgroup("0::/ec-10/x", "/ec-1") {
		t.Error("inCgroup() is not true for what is in the group only, want that")
	}
}
