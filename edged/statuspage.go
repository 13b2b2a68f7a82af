package edged

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/page"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/stats"
)

// gaugePatience bounds the wait for figures: the page is wanted most when something hangs.
const gaugePatience = 3 * time.Second

// pageRoutes are the status page, at the root of the read-only port.
func (e *Edged) pageRoutes() []server.Route {
	return []server.Route{{Pattern: "/{$}", Handler: page.Handler(e), ReadOnly: true, LocalOnly: true}}
}

// Gauges returns how full the device is, in the figures by which pods are evicted. It implements page.Source.
func (e *Edged) Gauges(ctx context.Context) []page.Gauge {
	ctx, cancel := context.WithTimeout(ctx, gaugePatience)
	defer cancel()
	usage, err := e.stats.Node(ctx)
	if err != nil {
		klog.V(2).InfoS("Figures left out of the status page", "err", err)
	}
	return gauges(&usage)
}

// gauges picks from what the node uses what tells how full it is; a file system is shown once.
func gauges(u *stats.NodeUsage) []page.Gauge {
	list := []page.Gauge{{Name: "Memory", Used: used(u.Memory.CapacityBytes, u.Memory.AvailableBytes), Total: u.Memory.CapacityBytes}}
	seen := map[uint64]bool{}
	for _, fs := range []struct {
		name string
		stats.FS
	}{{"Disk", u.NodeFS}, {"Disk of images", u.ImageFS}, {"Disk of containers", u.ContainerFS}} {
		if !fs.Known || seen[fs.Device] {
			continue
		}
		seen[fs.Device] = true
		list = append(list, page.Gauge{Name: fs.name, Used: used(fs.CapacityBytes, fs.AvailableBytes), Total: fs.CapacityBytes, Detail: fs.Path})
		// Files can be many before the disk is full; that is worth a word only then.
		if taken := used(fs.Inodes, fs.InodesFree); taken > fs.Inodes/2 {
			list = append(list, page.Gauge{Name: fs.name + ", files", Used: taken, Total: fs.Inodes, Plain: true, Detail: fs.Path})
		}
	}
	if u.RunningPIDs > u.MaxPIDs/2 {
		list = append(list, page.Gauge{Name: "Processes", Used: u.RunningPIDs, Total: u.MaxPIDs, Plain: true})
	}
	return list
}

func used(total, available uint64) uint64 { return total - min(available, total) }
