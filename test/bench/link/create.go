package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/edgecore-io/edgecore/test/bench/load"
)

// creations is how many pods of each kind are made.
const creations = 20

// create makes one pod after another: the floor's, one that is bound to the node, and one as kubectl run makes it, which
// the scheduler has to bind and which gets a token.
func (e *edgeSite) create(ctx context.Context) error {
	say("one pod, %d times", creations)
	var base, bound, whole, gone, baseGone []time.Duration
	for i := range creations + 1 {
		name := fmt.Sprintf("pod-%d", i)
		began := time.Now()
		p, err := e.floor.Create(ctx, name)
		if err != nil {
			return err
		}
		up := time.Since(began)
		began = time.Now()
		if err := e.floor.Delete(ctx, p, time.Second); err != nil {
			return err
		}
		down := time.Since(began)
		boundUp, boundDown, err := e.life(ctx, demo("bound-"+name))
		if err != nil {
			return err
		}
		plain := demo("plain-" + name)
		plain.Spec.NodeName, plain.Spec.AutomountServiceAccountToken = "", nil
		wholeUp, _, err := e.life(ctx, plain)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // the first warms things up
		}
		base, bound, whole = append(base, up), append(bound, boundUp), append(whole, wholeUp)
		gone, baseGone = append(gone, boundDown), append(baseGone, down)
	}
	over := func(list, floor []time.Duration) string {
		a, b := load.Median(list), load.Median(floor)
		return fmt.Sprintf("%s (floor + %s)", millis(a), millis(a-b))
	}
	e.t.row("create (API) -> Running (API), pod bound to the node, median of 20", over(bound, base), millis(load.Median(base)), "<= floor + 60 ms")
	e.t.row("the same with scheduler, token volume and the cluster's CA", over(whole, base), millis(load.Median(base)), "")
	e.t.row("delete (API) -> gone (API), grace 1 s, median of 20", over(gone, baseGone), millis(load.Median(baseGone)), "")
	return nil
}

// life makes a pod and removes it: it tells how long each took, as a client that watches sees it.
func (e *edgeSite) life(ctx context.Context, pod *v1.Pod) (up, down time.Duration, err error) {
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
