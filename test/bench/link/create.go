package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/load"
)

// creations is how many pods of each kind are made.
const creations = 20

// times are those of the lives of pods, ours and the floor's.
type times struct{ up, down []time.Duration }

func (t *times) add(up, down time.Duration) { t.up, t.down = append(t.up, up), append(t.down, down) }

// create makes one pod after another: the floor's, one that is bound to the node, one as kubectl run makes it, which
// the scheduler has to bind and which gets a token; and one with a volume of each common kind, beside a floor that
// mounts the same.
func (e *edgeSite) create(ctx context.Context) error {
	say("one pod, %d times", creations)
	whole, err := e.likeFull(ctx)
	if err != nil {
		return err
	}
	var base, bound, plain, full, fullBase times
	for i := range creations + 1 {
		name := fmt.Sprintf("pod-%d", i)
		scheduled := demo("plain-" + name)
		scheduled.Spec.NodeName, scheduled.Spec.AutomountServiceAccountToken = "", nil
		for _, one := range []struct {
			life func() (up, down time.Duration, err error)
			keep *times
		}{
			{func() (time.Duration, time.Duration, error) { return floorLife(ctx, e.floor, name) }, &base},
			{func() (time.Duration, time.Duration, error) { return e.podLifecycle(ctx, demo("bound-"+name)) }, &bound},
			{func() (time.Duration, time.Duration, error) { return e.podLifecycle(ctx, scheduled) }, &plain},
			{func() (time.Duration, time.Duration, error) { return floorLife(ctx, whole, "full-"+name) }, &fullBase},
			{func() (time.Duration, time.Duration, error) { return e.podLifecycle(ctx, fullPod("full-"+name)) }, &full},
		} {
			up, down, err := one.life()
			if err != nil {
				return err
			}
			if i > 0 { // the first warms things up
				one.keep.add(up, down)
			}
		}
	}
	e.compare("create (API) -> Running (API), pod bound to the node, median of 20", bound.up, base.up,
		"<= floor + 60 ms")
	e.compare("the same with scheduler, token volume and the cluster's CA", plain.up, base.up, "")
	e.compare("the same, bound, with token, configmap, secret and emptyDir", full.up, fullBase.up,
		"<= 1.10x floor + 60 ms")
	e.compare("delete (API) -> gone (API), grace 1 s, median of 20", bound.down, base.down, "")
	e.compare("the same with token, configmap, secret and emptyDir", full.down, fullBase.down, "<= grace used + 0.3 s")
	return nil
}

// compare adds a row of medians.
func (e *edgeSite) compare(what string, ours, floor []time.Duration, budget string) {
	a, b := load.Median(ours), load.Median(floor)
	e.t.row(what, fmt.Sprintf("%s (%.2fx, floor + %s)", millis(a), float64(a)/float64(b), millis(a-b)), millis(b),
		budget)
}

// floorLife is the life of a pod of the bare CRI client.
func floorLife(ctx context.Context, client *floor.Client, name string) (up, down time.Duration, err error) {
	began := time.Now()
	p, err := client.Create(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	up = time.Since(began)
	deleted, err := client.Delete(ctx, p, time.Second)
	return up, deleted.Stopped, err
}

// fullPod is a pod with a volume of each common kind.
func fullPod(name string) *v1.Pod {
	pod := demo(name)
	pod.Spec.AutomountServiceAccountToken = nil // the API server adds the token's volume
	pod.Spec.Volumes = []v1.Volume{
		{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{
			Name: "conf", VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "full"}},
			},
		},
		{Name: "key", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "full"}}},
	}
	for _, v := range pod.Spec.Volumes {
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return pod
}

// likeFull returns a floor that asks the runtime for what the agent asks for when it runs a full pod.
func (e *edgeSite) likeFull(ctx context.Context) (*floor.Client, error) {
	if err := e.kube.Apply(ctx, `{apiVersion: v1, kind: ConfigMap, metadata: {name: full}, data: {a: one}}
---
{apiVersion: v1, kind: Secret, metadata: {name: full}, stringData: {k: hush}}
`); err != nil {
		return nil, err
	}
	pods := e.api.CoreV1().Pods("default")
	if _, err := pods.Create(ctx, fullPod("like"), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	whole := *e.floor
	err := until(ctx, "a full pod runs", edgeTime, func() (bool, error) {
		p, err := pods.Get(ctx, "like", metav1.GetOptions{})
		if err != nil || p.Status.Phase != v1.PodRunning {
			return false, err
		}
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
		whole.Like, err = floor.Of(ctx, e.floor.CRI, id, filepath.Join(e.floor.LogDir, "like"))
		return true, err
	})
	if err != nil {
		return nil, err
	}
	if err := pods.Delete(ctx, "like", metav1.DeleteOptions{}); err != nil {
		return nil, err
	}
	return &whole, until(ctx, "the full pod is gone", edgeTime, func() (bool, error) {
		_, err := pods.Get(ctx, "like", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreMissing(err)
	})
}

// podLifecycle makes a pod and removes it: it tells how long each took, as a client that watches sees it.
func (e *edgeSite) podLifecycle(ctx context.Context, pod *v1.Pod) (up, down time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, edgeTime)
	defer cancel()
	pods := e.api.CoreV1().Pods("default")
	w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	if err != nil {
		return 0, 0, err
	}
	defer w.Stop()
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	err = await(ctx, w, func(event watch.Event, p *v1.Pod) bool { return p.Status.Phase == v1.PodRunning })
	if err != nil {
		return 0, 0, fmt.Errorf("pod %s does not run: %w", pod.Name, err)
	}
	up = time.Since(began)
	began = time.Now()
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return 0, 0, err
	}
	err = await(ctx, w, func(event watch.Event, p *v1.Pod) bool { return event.Type == watch.Deleted })
	if err != nil {
		return 0, 0, fmt.Errorf("pod %s does not go: %w", pod.Name, err)
	}
	return up, time.Since(began), nil
}

// await reads a watch until an event is the one.
func await(ctx context.Context, w watch.Interface, is func(watch.Event, *v1.Pod) bool) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-w.ResultChan():
			if !ok {
				return errors.New("the watch ended")
			}
			if p, isPod := event.Object.(*v1.Pod); isPod && is(event, p) {
				return nil
			}
		}
	}
}
