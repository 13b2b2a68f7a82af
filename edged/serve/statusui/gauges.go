package statusui

import "github.com/edgecore-io/edgecore/edged/node/stats"

// Gauges picks the figures that show how full the node is; each file system is shown once.
func Gauges(u *stats.NodeUsage) []Gauge {
	list := []Gauge{{
		Name:  "Memory",
		Used:  used(u.Memory.CapacityBytes, u.Memory.AvailableBytes),
		Total: u.Memory.CapacityBytes,
	}}
	seen := map[uint64]bool{}
	for _, fs := range []struct {
		name string
		stats.FS
	}{{"Disk", u.NodeFS}, {"Disk of images", u.ImageFS}, {"Disk of containers", u.ContainerFS}} {
		if !fs.Known || seen[fs.Device] {
			continue
		}
		seen[fs.Device] = true
		list = append(list, Gauge{
			Name:   fs.name,
			Used:   used(fs.CapacityBytes, fs.AvailableBytes),
			Total:  fs.CapacityBytes,
			Detail: fs.Path,
		})
		// Files can be many before the disk is full; that is worth a word only then.
		if taken := used(fs.Inodes, fs.InodesFree); taken > fs.Inodes/2 {
			list = append(list, Gauge{
				Name:   fs.name + ", files",
				Used:   taken,
				Total:  fs.Inodes,
				Plain:  true,
				Detail: fs.Path,
			})
		}
	}
	if u.RunningPIDs > u.MaxPIDs/2 {
		list = append(list, Gauge{Name: "Processes", Used: u.RunningPIDs, Total: u.MaxPIDs, Plain: true})
	}
	return list
}

func used(total, available uint64) uint64 { return total - min(available, total) }
