package edged

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/env"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// What edged tells others: it implements server.Node.

// Pods returns the pods with their newest status, by namespace and name. Pods on their way out are
// among them until nothing is left of them.
func (e *Edged) Pods() []*v1.Pod {
	all := e.wanted.all()
	pods := make([]*v1.Pod, 0, len(all))
	for _, w := range all {
		pod := *w.pod // shallow: what is below is never changed
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		if st, ok := e.statuses.Get(pod.UID); ok {
			pod.Status = st
		} else {
			pod.Status.Phase = cmp.Or(pod.Status.Phase, v1.PodPending)
		}
		if w.leaving && pod.DeletionTimestamp == nil {
			pod.DeletionTimestamp = &metav1.Time{Time: e.began.Truncate(time.Second)}
		}
		pods = append(pods, &pod)
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// Events returns what happened lately.
func (e *Edged) Events() []v1.Event { return e.recorder.List() }

// SyncLoop returns nil when pods are being kept in sync.
func (e *Edged) SyncLoop() error { return e.pleg.Healthy() }

// Info returns what the status command shows.
func (e *Edged) Info(context.Context) server.Info {
	text := func(v any) string { s, _ := v.(string); return s }
	var link *server.Link
	if e.opts.Link != nil {
		link = new(e.opts.Link())
	}
	return server.Info{
		Link: link, NodeName: e.opts.NodeName, Version: e.opts.Version, Started: e.began,
		Runtime: text(e.runtimeName.Load()), RuntimeVersion: text(e.runtimeVersion.Load()), Endpoint: e.opts.RuntimeEndpoint,
		Store: e.opts.StorePath, StaticPodPath: e.opts.StaticPodDir, PodLogsDir: e.opts.PodLogsDir,
		Conditions: e.health.Snapshot(),
	}
}

// hostIPs are the node's addresses; none while it has no network.
func (e *Edged) hostIPs() []string {
	if ip := cmp.Or(e.opts.NodeIP, node.IP()); ip != "" {
		return []string{ip}
	}
	return nil
}

func (e *Edged) facts() env.Facts {
	return env.Facts{HostIPs: e.hostIPs(), NodeName: e.opts.NodeName, Allocatable: e.opts.Allocatable}
}

func (e *Edged) statusInputs(pod *v1.Pod, obs *observed.Pod) status.Inputs {
	name, _ := e.runtimeName.Load().(string)
	before, _ := e.statuses.Get(pod.UID)
	return status.Inputs{
		Pod: pod, Observed: obs, Runtime: cmp.Or(name, "containerd"), Previous: before, HostIPs: e.hostIPs(), Now: time.Now(),
	}
}

// nodeStatus is the status of the node, without its conditions.
func (e *Edged) nodeStatus() v1.NodeStatus {
	addresses := make([]v1.NodeAddress, 0, 2)
	for _, ip := range e.hostIPs() {
		addresses = append(addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	system := e.system
	name, _ := e.runtimeName.Load().(string)
	version, _ := e.runtimeVersion.Load().(string)
	if name != "" {
		system.ContainerRuntimeVersion = name + "://" + version
	}
	return v1.NodeStatus{
		Capacity: e.opts.Capacity, Allocatable: e.opts.Allocatable, NodeInfo: system,
		Addresses: append(addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: e.opts.NodeName}),
	}
}

// unready says why this node cannot run pods, in the kubelet's words; nil that it can.
func (e *Edged) unready() error {
	if err := e.pleg.Healthy(); err != nil {
		return fmt.Errorf("container runtime is down, PLEG is not healthy: %w", err)
	}
	for _, c := range e.health.Snapshot() {
		if c.Code == health.RuntimeNetwork {
			return fmt.Errorf("container runtime network not ready: NetworkReady=false %s", c.Detail)
		}
	}
	return nil
}
