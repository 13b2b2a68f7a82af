package agentconfig

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func TestDeviceTwinOptions(t *testing.T) {
	for _, tc := range []struct {
		path, group string
		dir         string
		gid         int
		problem     string
	}{
		{"/etc/kubeedge/", "", "/etc/kubeedge", 0, ""},
		{"/run/x/dmi.sock", "1234", "/run/x", 1234, ""},
		{"/run/x", "root", "/run/x", 0, ""},
		{"/run/x", "no-such-group", "", 0, `no group "no-such-group"`},
		{"/run/x", "-1", "", 0, "no group"},
	} {
		o, err := DeviceTwinOptions(&v1alpha2.DeviceTwin{DMISockPath: tc.path, DMISockGroup: tc.group})
		switch {
		case tc.problem != "":
			if err == nil || !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("group %s: %v, want %q", tc.group, err, tc.problem)
			}
		case err != nil || o.SocketDir != tc.dir || o.SocketGroup != tc.gid:
			t.Errorf("%s, group %q: folder %s, group %d, %v; want %s and %d", tc.path, tc.group, o.SocketDir,
				o.SocketGroup, err, tc.dir, tc.gid)
		}
	}
}
