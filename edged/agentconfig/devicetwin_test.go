package agentconfig

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func TestDeviceTwinOptions(t *testing.T) {
	for _, tc := range []struct {
		path, group string
		dir, other  string
		gid         int
		problem     string
	}{
		{"/run/edgecore/dmi/", "", "/run/edgecore/dmi", "/etc/kubeedge", 0, ""},
		{"/etc/kubeedge/", "", "/run/edgecore/dmi", "/etc/kubeedge", 0, ""},
		{"/etc/kubeedge/dmi.sock", "7", "/run/edgecore/dmi", "/etc/kubeedge", 7, ""},
		{"/run/x/dmi.sock", "1234", "/run/x", "", 1234, ""},
		{"/run/x", "root", "/run/x", "", 0, ""},
		{"/run/x", "no-such-group", "", "", 0, `no group "no-such-group"`},
		{"/run/x", "-1", "", "", 0, "no group"},
	} {
		o := DeviceTwinOptions(&v1alpha2.DeviceTwin{DMISockPath: tc.path, DMISockGroup: tc.group})
		group, err := o.SocketGroup()
		switch {
		case tc.problem != "":
			if err == nil || !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("group %s: %v, want %q", tc.group, err, tc.problem)
			}
		case err != nil || o.SocketDir != tc.dir || o.OtherSocketDir != tc.other ||
			group != tc.gid:
			t.Errorf("%s, group %q: folders %s and %q, group %d, %v; want %s, %q and %d", tc.path, tc.group,
				o.SocketDir, o.OtherSocketDir, group, err, tc.dir, tc.other, tc.gid)
		}
	}
}
