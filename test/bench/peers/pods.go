package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

const (
	namespace = "default"
	// label is the label of a group's pods.
	label = "peers"
	// calls is how many API calls are made at a time.
	calls = 30
)

// kind is a kind of pod.
type kind int

const (
	withToken kind = iota
	withoutToken
	// withVolumes is withToken, and a ConfigMap, a Secret and an emptyDir.
	withVolumes
)

// volumeSources is what pods withVolumes mount.
const volumeSources = `{apiVersion: v1, kind: ConfigMap, metadata: {name: full}, data: {a: one}}
---
{apiVersion: v1, kind: Secret, metadata: {name: full}, stringData: {k: hush}}
`

// pod returns a pod that is bound to a node.
func pod(name, group, node string, k kind) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: group}},
		Spec: v1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: new(int64(grace.Seconds())),
			Containers: []v1.Container{{
				Name:            "main",
				Image:           images.Demo,
				ImagePullPolicy: v1.PullIfNotPresent,
				Command:         command,
			}},
		},
	}
	switch k {
	case withToken:
	case withoutToken:
		p.Spec.AutomountServiceAccountToken = new(false)
	case withVolumes:
		p.Spec.Volumes = []v1.Volume{
			{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{
				Name: "conf", VolumeSource: v1.VolumeSource{
					ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "full"}},
				},
			},
			{Name: "key", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "full"}}},
		}
		for _, v := range p.Spec.Volumes {
			c := &p.Spec.Containers[0]
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
		}
	}
	return p
}

// group is a number of pods that were created together.
type group struct {
	b     *bench
	names []string
	watch watch.Interface
}

// create creates pods on a node at once and waits until all run. It returns how long each took since the first call,
// the fastest first.
func (b *bench) create(ctx context.Context, s *side, k kind, count int) (*group, []time.Duration, error) {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	b.batches++
	id := fmt.Sprintf("%s-%d", s.subject, b.batches)
	g := &group{b: b}
	var err error
	// It outlives this call.
	g.watch, err = b.api.CoreV1().Pods(namespace).Watch(context.WithoutCancel(ctx),
		metav1.ListOptions{LabelSelector: label + "=" + id})
	if err != nil {
		return nil, nil, err
	}
	for i := range count {
		g.names = append(g.names, fmt.Sprintf("%s-%d", id, i))
	}
	began := time.Now()
	made := g.each(ctx, func(ctx context.Context, name string) error {
		_, err := b.api.CoreV1().Pods(namespace).Create(ctx, pod(name, id, s.node, k), metav1.CreateOptions{})
		return err
	})
	times, err := g.await(ctx, began, func(e watch.Event, p *v1.Pod) (bool, error) {
		if p.Status.Phase == v1.PodFailed {
			return false, fmt.Errorf("pod %s failed: %s: %s", p.Name, p.Status.Reason, p.Status.Message)
		}
		return p.Status.Phase == v1.PodRunning, nil
	})
	if err := errors.Join(<-made, err); err != nil {
		g.watch.Stop()
		return nil, nil, fmt.Errorf("%d pods on %s do not run: %w", count, s.node, err)
	}
	return g, times, nil
}

// remove deletes the pods at once and waits until all are gone. It returns how long each took since the first call.
func (g *group) remove(ctx context.Context) ([]time.Duration, error) {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	defer g.watch.Stop()
	began := time.Now()
	deleted := g.each(ctx, func(ctx context.Context, name string) error {
		return g.b.api.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
	times, err := g.await(ctx, began, func(e watch.Event, _ *v1.Pod) (bool, error) {
		return e.Type == watch.Deleted, nil
	})
	if err := errors.Join(<-deleted, err); err != nil {
		return nil, fmt.Errorf("%d pods are not gone: %w", len(g.names), err)
	}
	return times, nil
}

// removed waits until edgecore has removed the pods from the runtime, which follows when they are gone. The kubelet
// collects them once a minute.
func (g *group) removed(ctx context.Context, s *side) error {
	if s.subject != results.EdgeCore {
		return nil
	}
	return floor.UntilRemoved(ctx, s.cri, g.names)
}

// each makes a call for each pod, and sends the joined error. It does not wait for the calls, because the caller must
// read its watch meanwhile or lose it.
func (g *group) each(ctx context.Context, call func(context.Context, string) error) <-chan error {
	done := make(chan error, 1)
	go func() {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(calls)
		for _, name := range g.names {
			group.Go(func() error { return call(ctx, name) })
		}
		done <- group.Wait()
	}()
	return done
}

// await reads the watch until the condition has held for each pod, and returns when that was.
func (g *group) await(
	ctx context.Context, began time.Time, is func(watch.Event, *v1.Pod) (bool, error),
) ([]time.Duration, error) {
	waiting := map[string]bool{}
	for _, name := range g.names {
		waiting[name] = true
	}
	var times []time.Duration
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d pods: %w", len(waiting), len(g.names), ctx.Err())
		case event, ok := <-g.watch.ResultChan():
			p, isPod := event.Object.(*v1.Pod)
			if !ok || !isPod {
				return nil, fmt.Errorf("the watch of pods ended: %v", event.Object)
			}
			happened, err := is(event, p)
			if err != nil {
				return nil, err
			}
			if happened && waiting[p.Name] {
				delete(waiting, p.Name)
				times = append(times, time.Since(began))
			}
		}
	}
	return times, nil
}

// like returns a floor that makes the same requests to the runtime as edgecore does for a pod of a kind.
func (b *bench) like(ctx context.Context, s *side, k kind) (_ *floor.Client, err error) {
	if c := b.floors[k]; c != nil {
		return c, nil
	}
	g, _, err := b.create(ctx, s, k, 1)
	if err != nil {
		return nil, err
	}
	defer func() {
		_, removed := g.remove(ctx)
		err = errors.Join(err, removed)
	}()
	p, err := b.api.CoreV1().Pods(namespace).Get(ctx, g.names[0], metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	b.floors[k], err = b.likePod(ctx, s.cri, p, fmt.Sprint(k))
	return b.floors[k], err
}

// likePod returns a floor that makes the same requests to the runtime as those that a running pod was made with. Its
// files are in a folder like-NAME.
func (b *bench) likePod(ctx context.Context, client *cri.Client, p *v1.Pod, name string) (*floor.Client, error) {
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	c := *b.floor
	var err error
	c.Like, err = floor.Of(ctx, client, id, filepath.Join(c.LogDir, "like-"+name))
	return &c, err
}
