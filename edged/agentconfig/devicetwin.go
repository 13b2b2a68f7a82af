package agentconfig

import (
	"cmp"
	"fmt"
	"maps"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/edged/serve/statusui"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// ShownDevices returns what the status page shows of the devices.
func ShownDevices(m *devicetwin.Module) func() []statusui.Device {
	return func() []statusui.Device {
		list := m.Devices()
		smallsort.SortFunc(list, func(a, b devicetwin.Device) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		})
		var out []statusui.Device
		for _, d := range list {
			shown := statusui.Device{
				Namespace: d.Namespace,
				Name:      d.Name,
				State:     d.Twin.State,
				Message:   d.Twin.StateMessage,
				Well:      devices.Works(d.Twin.State),
			}
			for _, name := range slices.Sorted(maps.Keys(d.Twin.Properties)) {
				p, v := d.Twin.Properties[name], statusui.Property{Name: name, Unit: d.Units[name]}
				if p.Reported != nil {
					v.Value, v.At = p.Reported.Value, time.UnixMilli(p.Reported.At)
				}
				if p.Desired != nil {
					v.Desired = p.Desired.Value
				}
				for _, x := range m.Recent(d.Namespace, d.Name, name) {
					v.Recent = append(v.Recent, statusui.Point{At: x.At, Value: x.Value})
				}
				shown.Properties = append(shown.Properties, v)
			}
			out = append(out, shown)
		}
		return out
	}
}

// DeviceTwinOptions returns what the configuration says about devicetwin.
func DeviceTwinOptions(d *v1alpha2.DeviceTwin) devicetwin.Options {
	o := devicetwin.Options{
		SocketDir:   filepath.Clean(d.DMISockPath),
		SocketGroup: func() (int, error) { return groupOf(d.DMISockGroup) },
	}
	if strings.HasSuffix(d.DMISockPath, ".sock") {
		o.SocketDir = filepath.Dir(d.DMISockPath)
	}
	// Configurations of KubeEdge name its folder, in which the keys of the agent may be. Both have a socket then: the
	// mappers of this repository mount only their own folder, and KubeEdge's only KubeEdge's.
	if o.SocketDir == v1alpha2.DefaultDMIDir || o.SocketDir == v1alpha2.KubeEdgeDMIDir {
		o.SocketDir, o.OtherSocketDir = v1alpha2.DefaultDMIDir, v1alpha2.KubeEdgeDMIDir
	}
	return o
}

// groupOf returns the number of a group, which is given by its name or number; "" is root's.
func groupOf(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	number := name
	if g, err := user.LookupGroup(name); err == nil {
		number = g.Gid
	}
	gid, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("modules.deviceTwin.dmiSockGroup: there is no group %q on this device: make it with "+
			"groupadd, or give the number of a group", name)
	}
	return int(gid), nil
}
