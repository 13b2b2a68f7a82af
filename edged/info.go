package edged

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/clock"
	"github.com/edgecore-io/edgecore/edged/env"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/source"
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
	text := func(v any) string { s, _ := v.(string); return s }
	var link *server.Link
	if e.opts.Link != nil {
		link = new(e.opts.Link())
		link.Since = clock.Since(link.Since, time.Now())
	}
	return server.Info{
		Link: link, NodeName: e.opts.NodeName, Version: e.opts.Version, Started: clock.Since(e.began, time.Now()),
		Runtime: text(e.runtimeName.Load()), RuntimeVersion: text(e.runtimeVersion.Load()), Endpoint: e.opts.RuntimeEndpoint,
		Store: e.opts.StorePath, StaticPodPath: e.opts.StaticPodDir, PodLogsDir: e.opts.PodLogsDir,
		Conditions: e.health.Snapshot(),
	}
}

// hostIP is the node's first address, the loopback's while it has no network.
func (e *Edged) hostIP() string {
	if ips := e.hostIPs(); len(ips) > 0 {
		return ips[0]
	}
	return loopback
}

// hostIPs are the node's addresses; none while it has had no network yet. A node whose default route or interface is gone
// for a while, as without a DHCP server, keeps its address.
func (e *Edged) hostIPs() []string {
	if e.opts.NodeIP != "" { // one, or one of each family
		return strings.FieldsFunc(e.opts.NodeIP, func(r rune) bool { return r == ',' || r == ' ' })
	}
	if name := e.opts.Interface; name != "" {
		return e.addresses.choose(node.AddressOf(name), func() (hardware, other string) { return "", "" })
	}
	return e.addresses.choose(node.IP(), node.LocalIPs)
}

// addresses remember the node's address. The zero value is ready.
type addresses struct {
	mu sync.Mutex
	// last is the newest address that was found, before the one that the Node had when the agent started; "" is none.
	last, before string
}

// choose returns the address that was found now, or the one found last. Where none was found since the start it is that of
// the hardware, else the one that the Node had before, else that of another interface; local finds both. A node that has had
// an address of IPv4 does not take one of IPv6 instead: its route of IPv4 is gone for a while.
func (a *addresses) choose(found string, local func() (hardware, other string)) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found != "" && (isIPv4(found) || !isIPv4(cmp.Or(a.last, a.before))) {
		a.last = found
	}
	ip := a.last
	if ip == "" {
		hardware, other := local()
		if isIPv4(a.before) && !isIPv4(hardware) {
			hardware = ""
		}
		ip = cmp.Or(hardware, a.before, other)
	}
	if ip == "" {
		return nil
	}
	return []string{ip}
}

// isIPv4 reports whether a text is an address of IPv4.
func isIPv4(text string) bool { return net.ParseIP(text).To4() != nil }

// remember takes note of the address that the Node had in an earlier life of the agent.
func (a *addresses) remember(status *v1.NodeStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, address := range status.Addresses {
		if a.before == "" && address.Type == v1.NodeInternalIP && net.ParseIP(address.Address) != nil {
			a.before = address.Address
		}
	}
}

func (e *Edged) facts() env.Facts {
	return env.Facts{HostIPs: e.hostIPs(), NodeName: e.opts.NodeName, Allocatable: e.opts.Allocatable}
}

func (e *Edged) statusInputs(pod *v1.Pod, obs *observed.Pod) status.Inputs {
	name, _ := e.runtimeName.Load().(string)
	before, restored := e.previousStatus(pod)
	pod = e.allocations.Allocated(pod)
	running, resizing := e.allocations.Status(pod, obs)
	return status.Inputs{
		Running: running, Resize: resizing,
		RecursiveReadOnly: asksRecursiveReadOnly(pod) && e.runtime.RecursiveReadOnly(e.life, pod),
		Pod:               pod, Observed: obs, Runtime: cmp.Or(name, "containerd"), Previous: before, Restored: restored,
		HostIPs: e.hostIPs(), IPv6First: e.ipv6First(), Now: time.Now(), Static: source.IsStatic(pod),
		Stopped: e.stopped(pod.UID), Devices: e.devices.Health(pod.UID),
	}
}

// previousStatus is a pod's newest status, and whether this run of the agent has not made it. A pod without one, whose
// row the store has lost say, goes on from what the API server has of it. A phase that is final there is final.
func (e *Edged) previousStatus(pod *v1.Pod) (before v1.PodStatus, restored bool) {
	before, known := e.statuses.Get(pod.UID)
	if !known {
		return pod.Status, true
	}
	if api := &pod.Status; status.Terminal(api.Phase) && !status.Terminal(before.Phase) {
		before.Phase, before.Reason, before.Message = api.Phase, api.Reason, api.Message
	}
	return before, e.statuses.Restored(pod.UID)
}

// ipv6First reports whether the node's own address, as configured, is one of IPv6.
func (e *Edged) ipv6First() bool {
	return e.opts.NodeIP != "" && strings.Contains(first(e.hostIPs()), ":")
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// asksRecursiveReadOnly tells whether a pod has a mount that depends on what its runtime can do.
func asksRecursiveReadOnly(pod *v1.Pod) bool {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled {
				return true
			}
		}
	}
	return false
}
