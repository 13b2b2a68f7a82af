package statusui

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/node/stats"
)

func TestGauges(t *testing.T) {
	memory := Gauge{Name: "Memory", Used: 300, Total: 512}
	disk := Gauge{Name: "Disk", Used: 60, Total: 100, Detail: "/var/lib/kubelet"}
	node := stats.NodeUsage{
		Memory: stats.Memory{CapacityBytes: 512, AvailableBytes: 212},
		NodeFS: stats.FS{
			Known:          true,
			Path:           "/var/lib/kubelet",
			Device:         1,
			CapacityBytes:  100,
			AvailableBytes: 40,
			Inodes:         10,
			InodesFree:     9,
		},
	}
	for name, tc := range map[string]struct {
		set  func(*stats.NodeUsage)
		want []Gauge
	}{
		"one disk": {func(u *stats.NodeUsage) {
			u.ImageFS = stats.FS{
				Known:          true,
				Path:           "/var/lib/containerd",
				Device:         1,
				CapacityBytes:  100,
				AvailableBytes: 40,
			}
			u.ContainerFS = u.ImageFS
		}, []Gauge{memory, disk}},
		"another for images": {func(u *stats.NodeUsage) {
			u.ImageFS = stats.FS{Known: true, Path: "/images", Device: 2, CapacityBytes: 10, AvailableBytes: 1}
		}, []Gauge{memory, disk, {Name: "Disk of images", Used: 9, Total: 10, Detail: "/images"}}},
		"many files": {func(u *stats.NodeUsage) { u.NodeFS.InodesFree = 4 },
			[]Gauge{memory, disk, {Name: "Disk, files", Used: 6, Total: 10, Plain: true, Detail: "/var/lib/kubelet"}}},
		"many processes": {func(u *stats.NodeUsage) { u.RunningPIDs, u.MaxPIDs = 51, 100 },
			[]Gauge{memory, disk, {Name: "Processes", Used: 51, Total: 100, Plain: true}}},
		"few processes": {func(u *stats.NodeUsage) { u.RunningPIDs, u.MaxPIDs = 50, 100 }, []Gauge{memory, disk}},
		"nothing known": {func(u *stats.NodeUsage) { *u = stats.NodeUsage{} }, []Gauge{{Name: "Memory"}}},
	} {
		t.Run(name, func(t *testing.T) {
			u := node
			tc.set(&u)
			if diff := cmp.Diff(tc.want, Gauges(&u)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
