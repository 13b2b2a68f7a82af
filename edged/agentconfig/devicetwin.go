package agentconfig

import (
	"fmt"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// DeviceTwinOptions returns what the configuration says about devicetwin.
func DeviceTwinOptions(d *v1alpha2.DeviceTwin) (devicetwin.Options, error) {
	o := devicetwin.Options{SocketDir: filepath.Clean(d.DMISockPath)}
	if strings.HasSuffix(d.DMISockPath, ".sock") {
		o.SocketDir = filepath.Dir(d.DMISockPath)
	}
	if d.DMISockGroup == "" {
		return o, nil
	}
	number := d.DMISockGroup
	if g, err := user.LookupGroup(d.DMISockGroup); err == nil {
		number = g.Gid
	}
	gid, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return o, fmt.Errorf("modules.deviceTwin.dmiSockGroup: there is no group %q on this device: make it with "+
			"groupadd, "+
			"or give the number of a group", d.DMISockGroup)
	}
	o.SocketGroup = int(gid)
	return o, nil
}
