package edged

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/clock"
	"github.com/edgecore-io/edgecore/edged/env"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/status"
)

// What edged tells others: it implements server.Node.

// Pods returns the pods with their newest status, by namespace and name. Pods on their way out are
// among them until nothing is left of them.
func (e *Edged) Pods() []*v1.Pod {
	all := e.desired.All()
	pods := make([]*v1.Pod, 0, len(all))
	for _, w := range all {
		pod := *w.Pod // shallow: what is below is never changed
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		if st, ok := e.statuses.Get(pod.UID); ok {
			pod.Status = status.WithOthers(st, w.Pod)
		} else {
			pod.Status.Phase = cmp.Or(pod.Status.Phase, v1.PodPending)
		}
		if w.Removed && pod.DeletionTimestamp == nil {
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
	name, version := e.runtimeVersion.Get()
	var link *server.Link
	if e.opts.Link != nil {
		link = new(e.opts.Link())
		link.Since = clock.Since(link.Since, time.Now())
	}
	return server.Info{
		Link: link, NodeName: e.opts.NodeName, Version: e.opts.Version, Started: clock.Since(e.began, time.Now()),
		Runtime: name, RuntimeVersion: version, Endpoint: e.opts.RuntimeEndpoint,
		Store: e.opts.StorePath, StaticPodPath: e.opts.StaticPodDir, PodLogsDir: e.opts.PodLogsDir,
		Conditions: e.health.Snapshot(),
	}
}

func (e *Edged) facts() env.Facts {
	return env.Facts{HostIPs: e.addresses.IPs(), NodeName: e.opts.NodeName, Allocatable: e.opts.Allocatable}
}
