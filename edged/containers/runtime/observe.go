package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// detailParallel bounds the status calls in flight for one pod.
const detailParallel = 4

// ListPods returns every pod of the runtime from its two lists, without the details. Sandboxes and containers without
// pod labels were not made by a kubelet and are left out.
func (r *Runtime) ListPods(ctx context.Context) ([]*observed.Pod, error) {
	pods, err := r.list(ctx, nil)
	if err != nil {
		return nil, err
	}
	out := make([]*observed.Pod, 0, len(pods))
	for _, p := range pods {
		order(p)
		out = append(out, p)
	}
	return out, nil
}

// GetPod returns all that the runtime knows of one pod; a pod that it does not know is empty. known is an earlier
// snapshot, or nil: what cannot have changed since is taken from there, which saves calls.
func (r *Runtime) GetPod(ctx context.Context, uid types.UID, known *observed.Pod) (*observed.Pod, error) {
	at := time.Now()
	pods, err := r.list(ctx, map[string]string{labelPodUID: string(uid)})
	if err != nil {
		return nil, err
	}
	pod := pods[uid]
	if pod == nil {
		pod = &observed.Pod{UID: uid}
	}
	pod.At = at
	if err := r.detail(ctx, pod, known); err != nil {
		return nil, err
	}
	pod.Detailed = true
	order(pod)
	return pod, nil
}

// order puts the newest first: sandboxes, and the attempts at each container, by their attempt number. Their
// times only order different containers: the clock of a device goes back when it starts without a battery.
func order(p *observed.Pod) {
	smallsort.SortStableFunc(p.Sandboxes, func(a, b *observed.Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt))
	})
	smallsort.SortStableFunc(p.Containers, func(a, b *observed.Container) int {
		return b.CreatedAt.Compare(a.CreatedAt)
	})
	attempts := map[string][]*observed.Container{}
	for _, c := range p.Containers {
		attempts[c.Name] = append(attempts[c.Name], c)
	}
	for _, list := range attempts {
		smallsort.SortStableFunc(list, func(a, b *observed.Container) int { return cmp.Compare(b.Attempt, a.Attempt) })
	}
	for i, c := range p.Containers {
		p.Containers[i], attempts[c.Name] = attempts[c.Name][0], attempts[c.Name][1:]
	}
}

func (r *Runtime) list(ctx context.Context, labels map[string]string) (map[types.UID]*observed.Pod, error) {
	at := time.Now()
	var sandboxes *runtimeapi.ListPodSandboxResponse
	var g errgroup.Group
	g.Go(func() (err error) {
		sandboxes, err = r.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{LabelSelector: labels},
		})
		return err
	})
	containers, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: labels},
	})
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	pods := map[types.UID]*observed.Pod{}
	of := func(o owner) *observed.Pod {
		p := pods[o.uid]
		if p == nil {
			p = &observed.Pod{UID: o.uid, Namespace: o.namespace, Name: o.name, At: at}
			pods[o.uid] = p
		}
		return p
	}
	for _, s := range sandboxes.Items {
		if o, ok := parseOwner(s.Labels); ok {
			p := of(o)
			p.Sandboxes = append(p.Sandboxes, &observed.Sandbox{
				ID: s.Id, Attempt: s.Metadata.GetAttempt(), Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
				CreatedAt: time.Unix(0, s.CreatedAt), RuntimeHandler: s.RuntimeHandler,
			})
		}
	}
	for _, c := range containers.Containers {
		o, ok := parseOwner(c.Labels)
		if !ok || o.container == "" {
			continue
		}
		n := parseNotes(c.Annotations)
		p := of(o)
		p.Containers = append(p.Containers, &observed.Container{
			ID:           c.Id,
			Name:         o.container,
			SandboxID:    c.PodSandboxId,
			Attempt:      c.Metadata.GetAttempt(),
			State:        c.State,
			Image:        c.Image.GetImage(),
			ImageRef:     c.ImageRef,
			ImageID:      c.ImageId,
			Hash:         r.opts.Hash(c.Id, n.hash),
			RestartCount: n.restartCount,
			CreatedAt:    time.Unix(0, c.CreatedAt),
		})
	}
	return pods, nil
}

// detail fills in what only the status calls tell. What vanished between list and status is dropped.
func (r *Runtime) detail(ctx context.Context, pod, known *observed.Pod) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(detailParallel)
	goneSandbox, goneContainer := make([]bool, len(pod.Sandboxes)), make([]bool, len(pod.Containers))
	for i, s := range pod.Sandboxes {
		if sandboxKnown(s, known) {
			continue
		}
		g.Go(func() error {
			err := r.detailSandbox(ctx, s)
			goneSandbox[i] = cri.IsNotFound(err)
			return ignoreNotFound(err)
		})
	}
	for i, c := range pod.Containers {
		processKnown(c, known)
		g.Go(func() error {
			err := r.detailContainer(ctx, c)
			goneContainer[i] = cri.IsNotFound(err)
			return ignoreNotFound(err)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	pod.Sandboxes = without(pod.Sandboxes, goneSandbox)
	pod.Containers = without(pod.Containers, goneContainer)
	return nil
}

func without[T any](list []T, gone []bool) []T {
	var kept []T
	for i, v := range list {
		if !gone[i] {
			kept = append(kept, v)
		}
	}
	return kept
}

func ignoreNotFound(err error) error {
	if cri.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *Runtime) detailSandbox(ctx context.Context, s *observed.Sandbox) error {
	resp, err := r.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{
		PodSandboxId: s.ID, Verbose: s.Ready,
	})
	if err != nil {
		return fmt.Errorf("status of sandbox %s: %w", s.ID, err)
	}
	st := resp.GetStatus()
	s.Ready = st.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	s.HostNetwork = st.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
	s.IPs = sandboxIPs(st, s.HostNetwork)
	s.PID = pidOf(resp.GetInfo())
	return nil
}

// sandboxIPs returns the pod's addresses; on the host network they are the node's, not the pod's.
func sandboxIPs(st *runtimeapi.PodSandboxStatus, hostNetwork bool) []string {
	if hostNetwork || st.GetNetwork().GetIp() == "" {
		return nil
	}
	ips := []string{st.Network.Ip}
	for _, more := range st.Network.AdditionalIps {
		ips = append(ips, more.Ip)
	}
	return ips
}

// detailContainer fills in a container. The verbose status, which takes a runtime much longer, is asked for only while
// the process of a running container is unknown.
func (r *Runtime) detailContainer(ctx context.Context, c *observed.Container) error {
	resp, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{
		ContainerId: c.ID, Verbose: c.Running() && c.PID == 0,
	})
	if err != nil {
		return fmt.Errorf("status of container %s: %w", c.ID, err)
	}
	st := resp.GetStatus()
	c.State = st.GetState()
	if name := st.GetImage().GetImage(); name != "" {
		c.Image = name
	}
	if st.GetImageRef() != "" {
		c.ImageRef = st.ImageRef
	}
	if st.GetImageId() != "" {
		c.ImageID = st.ImageId
	}
	c.StartedAt, c.FinishedAt = unixNano(st.StartedAt), unixNano(st.FinishedAt)
	c.ExitCode, c.Reason, c.Message, c.LogPath = st.ExitCode, st.Reason, st.Message, st.LogPath
	c.Resources = st.GetResources().GetLinux()
	if !c.Running() {
		c.PID = 0
	} else if c.PID == 0 {
		c.PID = pidOf(resp.GetInfo())
	}
	c.User, c.Images = st.GetUser().GetLinux(), mountedImages(st.GetMounts())
	c.StopSignal = signalName(st.GetStopSignal())
	if c.Exited() {
		c.Message = terminationMessage(st)
	}
	return nil
}

func unixNano(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// pidOf reads the pid from the verbose part of a status, which containerd and CRI-O write as JSON.
func pidOf(info map[string]string) int {
	var doc struct {
		Pid int `json:"pid"`
	}
	if text := info["info"]; text == "" || json.Unmarshal([]byte(text), &doc) != nil || doc.Pid < 0 {
		return 0
	}
	return doc.Pid
}
