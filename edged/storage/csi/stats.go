package csi

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// collectTimeout bounds how long metrics wait for drivers.
const collectTimeout = 5 * time.Second

// Usage is how full a volume of a pod is, as its driver says.
type Usage struct {
	Pod    types.NamespacedName
	PodUID types.UID
	// Name is the volume's folder: the PersistentVolume, or the volume in the pod. Claim is "" for the latter.
	Name, Claim string
	// Of a block volume only Capacity is known. Inodes are 0 where a driver does not count them.
	Capacity, Available, Used      int64
	Inodes, InodesFree, InodesUsed int64
	// Abnormal and Message are the volume's condition, where the driver tells it.
	HasCondition, Abnormal bool
	Message                string
}

// Usages asks the drivers how full the volumes of pods are, and Options.Others for the rest. Volumes of drivers that do
// not say are left out, as are those whose driver fails.
func (m *Manager) Usages(ctx context.Context) []Usage {
	m.mu.Lock()
	volumes := make([]mounted, 0, len(m.volumes))
	for _, v := range m.volumes {
		if v.ready {
			volumes = append(volumes, *v)
		}
	}
	drivers := maps.Clone(m.drivers)
	m.mu.Unlock()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var out []Usage
	for _, v := range volumes {
		d := drivers[v.record.Driver]
		if d == nil || !d.can[csi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
			continue
		}
		wg.Go(func() {
			if u, err := m.usage(ctx, d, v); err == nil {
				mu.Lock()
				out = append(out, u)
				mu.Unlock()
			}
		})
	}
	if m.opts.Others != nil {
		wg.Go(func() {
			others := usagesOf(m.opts.Others(ctx))
			mu.Lock()
			defer mu.Unlock()
			out = append(out, others...)
		})
	}
	wg.Wait()
	return out
}

func (m *Manager) usage(ctx context.Context, d *driver, v mounted) (Usage, error) {
	u := Usage{Pod: v.pod, PodUID: v.uid, Name: v.record.Name, Claim: v.claim}
	staging := ""
	if d.can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] && v.record.lifecycle() == persistent {
		staging, _ = m.staging(v.record)
	}
	var got *csi.NodeGetVolumeStatsResponse
	err := d.call(ctx, func(ctx context.Context, c csi.NodeClient) (err error) {
		got, err = c.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
			VolumeId: v.record.Handle, VolumePath: v.path, StagingTargetPath: staging,
		})
		return err
	})
	if err != nil {
		return Usage{}, err
	}
	for _, part := range got.Usage {
		switch part.Unit {
		case csi.VolumeUsage_BYTES:
			u.Capacity, u.Available, u.Used = part.Total, part.Available, part.Used
		case csi.VolumeUsage_INODES:
			u.Inodes, u.InodesFree, u.InodesUsed = part.Total, part.Available, part.Used
		}
	}
	if c := got.VolumeCondition; c != nil && d.can[csi.NodeServiceCapability_RPC_VOLUME_CONDITION] {
		u.HasCondition, u.Abnormal, u.Message = true, c.Abnormal, c.Message
	}
	return u, nil
}

// metrics are the figures of claims, under the kubelet's names.
var metrics = []struct {
	desc  *prometheus.Desc
	value func(*Usage) int64
}{
	{metric("capacity_bytes", "Capacity in bytes of the volume"), func(u *Usage) int64 { return u.Capacity }},
	{metric("available_bytes", "Number of available bytes in the volume"), func(u *Usage) int64 { return u.Available }},
	{metric("used_bytes", "Number of used bytes in the volume"), func(u *Usage) int64 { return u.Used }},
	{metric("inodes", "Maximum number of inodes in the volume"), func(u *Usage) int64 { return u.Inodes }},
	{metric("inodes_free", "Number of free inodes in the volume"), func(u *Usage) int64 { return u.InodesFree }},
	{metric("inodes_used", "Number of used inodes in the volume"), func(u *Usage) int64 { return u.InodesUsed }},
}

var abnormal = metric("health_status_abnormal", "Abnormal volume health status: 1 is abnormal, 0 is normal")

func metric(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_volume_stats_"+name, help, []string{"namespace", "persistentvolumeclaim"}, nil)
}

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range metrics {
		ch <- one.desc
	}
	ch <- abnormal
}

// Collect implements prometheus.Collector: it asks the drivers. A claim that several pods use is reported once.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	seen := map[types.NamespacedName]bool{}
	for _, u := range m.Usages(ctx) {
		claim := types.NamespacedName{Namespace: u.Pod.Namespace, Name: u.Claim}
		if u.Claim == "" || seen[claim] {
			continue
		}
		seen[claim] = true
		gauge := func(d *prometheus.Desc, value int64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), claim.Namespace, claim.Name)
		}
		for _, one := range metrics {
			gauge(one.desc, one.value(&u))
		}
		if u.HasCondition {
			value := int64(0)
			if u.Abnormal {
				value = 1
			}
			gauge(abnormal, value)
		}
	}
}
