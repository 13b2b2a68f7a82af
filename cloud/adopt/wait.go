package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pollInterval is how often a state is read that is waited for.
const pollInterval = time.Second

// poll waits until pending returns "" or a lasting error, and prints each new state. It waits no longer than
// Options.Wait. A request that kube-apiserver did not answer, or only for now, is sent again.
func (a *Adoption) poll(ctx context.Context, pending func() (string, error)) error {
	deadline := time.NewTimer(a.Wait)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	last := ""
	for {
		state, err := pending()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && passing(err):
			state = err.Error()
		case err != nil || state == "":
			return err
		}
		if state != last {
			a.printLine("  %s", state)
			last = state
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("after %s: %s", a.Wait, state)
		case <-tick.C:
		}
	}
}

// passing reports whether a request that failed may succeed later without anyone doing something about it.
func passing(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code := status.Status().Code
		return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
	}
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, io.ErrUnexpectedEOF)
}

// awaitReady waits until all pods of a Deployment are ready.
func (a *Adoption) awaitReady(ctx context.Context, ref Ref) error {
	a.printLine("Waiting for %s", ref)
	return a.poll(ctx, func() (string, error) {
		o, err := a.api.get(ctx, ref)
		if err != nil {
			return "", err
		}
		if o == nil {
			return "", missing(o, ref)
		}
		d, err := as(o, &appsv1.Deployment{})
		if err != nil {
			return "", err
		}
		state := unready(d)
		if state == "" {
			return "", nil
		}
		selector, err := selectorOf(o)
		if err != nil {
			return "", err
		}
		pods, err := a.api.list(ctx, Ref{"v1", "Pod", Namespace, ""}, selector)
		if err != nil {
			return "", err
		}
		for i := range pods {
			p, err := as(&pods[i], &v1.Pod{})
			if err != nil {
				return "", err
			}
			if why := stuck(p); why != "" {
				state += "; pod " + p.Name + ": " + why
			}
		}
		return state, nil
	})
}

// unready says what a Deployment waits for, or "".
func unready(d *appsv1.Deployment) string {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	s := &d.Status
	if s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas >= want &&
		s.Replicas == want {
		return ""
	}
	state := fmt.Sprintf("%d of %d pods of deployment/%s are ready", s.ReadyReplicas, want, d.Name)
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == v1.ConditionTrue {
			state += ": " + c.Message
		}
	}
	return state
}

// stuck says why a pod does not become ready, or "".
func stuck(p *v1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			return strings.Join([]string{c.Reason, c.Message}, ": ")
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	return ""
}

// fromJSON converts a tree to a Go type.
func fromJSON(tree, out any) error {
	data, err := json.Marshal(tree)
	return errors.Join(err, json.Unmarshal(data, out))
}

// equalJSON reports whether two values are the same in JSON.
func equalJSON(a, b any) bool {
	left, errLeft := json.Marshal(a)
	right, errRight := json.Marshal(b)
	return errLeft == nil && errRight == nil && reflect.DeepEqual(left, right)
}
