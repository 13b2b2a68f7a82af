package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

// What the Node says of drivers.
const (
	annotationIDs    = "csi.volume.kubernetes.io/nodeid"
	annotationAttach = "volumes.kubernetes.io/controller-managed-attach-detach"
)

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Run reports the drivers to the cluster, and unstages what returning drivers had staged for pods that are gone.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	told := m.registered() // nothing
	backoff, again := retry.NewBackoff(firstRetry, lastRetry), (<-chan time.Time)(nil)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.driversChanged:
			backoff.Reset()
		case <-again:
		}
		m.mu.Lock()
		unswept := m.unswept
		m.unswept = nil
		m.mu.Unlock()
		for _, d := range unswept {
			wg.Go(func() { m.sweep(ctx, d) })
		}
		now := m.registered()
		again = nil
		if m.opts.Cluster == nil {
			continue
		}
		if err := m.tellCluster(ctx, told, now); err != nil && ctx.Err() == nil {
			delay := backoff.Next()
			klog.V(2).InfoS("The cluster does not know of all CSI drivers yet", "err", err, "again", delay)
			again = time.After(delay)
			// The last report may be half done, so removed drivers are reported again.
			maps.Copy(now, told)
		}
		told = now
	}
}

// Linked is called when there is a link to the cloud: failed reports are sent again.
func (m *Manager) Linked() { m.notify() }

// registered returns the registered drivers by name, in the form of a CSINode.
func (m *Manager) registered() map[string]storagev1.CSINodeDriver {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]storagev1.CSINodeDriver{}
	for name, d := range m.drivers {
		entry := storagev1.CSINodeDriver{
			Name: name, NodeID: d.info.NodeId,
			TopologyKeys: slices.Sorted(maps.Keys(d.info.GetAccessibleTopology().GetSegments())),
		}
		if n := d.info.MaxVolumesPerNode; n > 0 {
			count := int32(min(n, math.MaxInt32))
			entry.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
		}
		out[name] = entry
	}
	return out
}

// topology are the labels that drivers want on the node.
func (m *Manager) topology() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(m.drivers)) {
		maps.Copy(out, m.drivers[name].info.GetAccessibleTopology().GetSegments())
	}
	return out
}

// tellCluster brings the Node and the CSINode up to date. before are drivers that may be gone now.
func (m *Manager) tellCluster(ctx context.Context, before, now map[string]storagev1.CSINodeDriver) error {
	if len(before) == 0 && len(now) == 0 {
		return nil
	}
	node, err := m.opts.Cluster.Node(ctx, m.opts.NodeName)
	if err != nil {
		return fmt.Errorf("read node %s: %w", m.opts.NodeName, err)
	}
	if marked, err := markNode(node, before, now, m.topology()); err != nil {
		return err
	} else if marked != nil {
		if err := m.opts.Cluster.UpdateNode(ctx, marked); err != nil {
			return fmt.Errorf("mark node %s with its CSI drivers: %w", m.opts.NodeName, err)
		}
	}
	have, err := m.opts.Cluster.CSINode(ctx, m.opts.NodeName)
	if apierrors.IsNotFound(err) {
		if _, err := m.opts.Cluster.CreateCSINode(ctx, newCSINode(node, now)); err != nil {
			return fmt.Errorf("create CSINode %s: %w", m.opts.NodeName, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read CSINode %s: %w", m.opts.NodeName, err)
	}
	for _, next := range csiNodeSteps(have, before, now) {
		next.ResourceVersion = have.ResourceVersion
		if have, err = m.opts.Cluster.UpdateCSINode(ctx, next); err != nil {
			return fmt.Errorf("update CSINode %s: %w", m.opts.NodeName, err)
		}
	}
	return nil
}

func newCSINode(node *v1.Node, now map[string]storagev1.CSINodeDriver) *storagev1.CSINode {
	n := &storagev1.CSINode{
		TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSINode"},
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		}},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{}},
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		n.Spec.Drivers = append(n.Spec.Drivers, now[name])
	}
	return n
}

// csiNodeSteps are the updates that bring a CSINode up to date. A driver's entry is immutable, so a driver that differs
// is removed first. Unknown drivers stay. It is pure.
func csiNodeSteps(have *storagev1.CSINode, before, now map[string]storagev1.CSINodeDriver) []*storagev1.CSINode {
	var same []storagev1.CSINodeDriver
	kept := map[string]bool{}
	for _, d := range have.Spec.Drivers {
		want, registered := now[d.Name]
		_, known := before[d.Name]
		if registered && !equality.Semantic.DeepEqual(d, want) || !registered && known {
			continue
		}
		same = append(same, d)
		kept[d.Name] = true
	}
	all := slices.Clone(same)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if !kept[name] {
			all = append(all, now[name])
		}
	}
	var steps []*storagev1.CSINode
	step := func(drivers []storagev1.CSINodeDriver) {
		n := have.DeepCopy()
		n.Spec.Drivers = drivers
		steps = append(steps, n)
	}
	if len(same) < len(have.Spec.Drivers) {
		step(same)
	}
	if len(all) > len(same) {
		step(all)
	}
	return steps
}

// markNode returns the Node with the ids that drivers have for it and the labels that they want; nil where it has them.
// It fails if the annotation is not valid JSON. It is pure.
func markNode(
	node *v1.Node, before, now map[string]storagev1.CSINodeDriver, labels map[string]string,
) (*v1.Node, error) {
	ids := map[string]string{}
	if text := node.Annotations[annotationIDs]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil || ids == nil {
			return nil, fmt.Errorf("annotation %s of node %s is not readable; remove it: %.200q", annotationIDs,
				node.Name, text)
		}
	}
	for name := range before {
		delete(ids, name)
	}
	for name, d := range now {
		ids[name] = d.NodeID
	}
	n := node.DeepCopy()
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	maps.Copy(n.Labels, labels)
	n.Annotations[annotationAttach] = "true"
	delete(n.Annotations, annotationIDs)
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil {
			return nil, err
		}
		n.Annotations[annotationIDs] = string(text)
	}
	if maps.Equal(n.Annotations, node.Annotations) && maps.Equal(n.Labels, node.Labels) {
		return nil, nil
	}
	return n, nil
}
