package adopt

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// podsOf returns the pods of a Deployment that have not ended. Pods of others may have its labels, and pods that have
// failed, such as evicted ones, stay until somebody deletes them.
func (a *Adoption) podsOf(ctx context.Context, d *unstructured.Unstructured) ([]v1.Pod, error) {
	selector, err := selectorOf(d)
	if err != nil {
		return nil, err
	}
	list, err := a.api.list(ctx, Ref{"v1", "Pod", Namespace, ""}, selector)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	sets, err := a.api.list(ctx, Ref{"apps/v1", "ReplicaSet", Namespace, ""}, "")
	if err != nil {
		return nil, err
	}
	pods := make([]v1.Pod, len(list))
	for i := range list {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list[i].Object, &pods[i]); err != nil {
			return nil, err
		}
	}
	return runningPods(d.GetUID(), sets, pods), nil
}

// runningPods returns the pods that have not ended and that a Deployment's ReplicaSets have made. A ReplicaSet
// that is gone counts as the Deployment's.
func runningPods(deployment types.UID, sets []unstructured.Unstructured, pods []v1.Pod) []v1.Pod {
	others := map[types.UID]bool{}
	for i := range sets {
		if owner := metav1.GetControllerOf(&sets[i]); owner == nil || owner.UID != deployment {
			others[sets[i].GetUID()] = true
		}
	}
	var out []v1.Pod
	for i := range pods {
		owner := metav1.GetControllerOf(&pods[i])
		ended := pods[i].Status.Phase == v1.PodSucceeded || pods[i].Status.Phase == v1.PodFailed
		if !ended && owner != nil && owner.Kind == "ReplicaSet" && !others[owner.UID] {
			out = append(out, pods[i])
		}
	}
	return out
}

// warnForeign warns about pods to which edgecore's Service would send devices, although they are not cloudcore's.
func (a *Adoption) warnForeign(ctx context.Context, p *Plan, service *unstructured.Unstructured) error {
	s, err := as(service, &v1.Service{})
	if err != nil || len(s.Spec.Selector) == 0 {
		return err
	}
	pods, err := a.api.list(ctx, Ref{"v1", "Pod", Namespace, ""}, labels.SelectorFromSet(s.Spec.Selector).String())
	if err != nil || len(pods) == 0 {
		return err
	}
	own := map[types.UID]bool{}
	if d, err := a.api.get(ctx, deployment(name)); err != nil {
		return err
	} else if d != nil {
		cloud, err := a.podsOf(ctx, d)
		if err != nil {
			return err
		}
		for i := range cloud {
			own[cloud[i].UID] = true
		}
	}
	for i := range pods {
		if !own[pods[i].GetUID()] {
			p.warn("pod %s is not cloudcore's, but edgecore's Service selects it and would send devices there once it "+
				"is ready: change its labels (%s)", pods[i].GetName(), labels.FormatLabels(s.Spec.Selector))
		}
	}
	return nil
}

func selectorOf(d *unstructured.Unstructured) (string, error) {
	var selector metav1.LabelSelector
	typed, _, err := unstructured.NestedMap(d.Object, "spec", "selector")
	if err != nil {
		return "", err
	}
	if err := fromJSON(typed, &selector); err != nil {
		return "", err
	}
	s, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil {
		return "", err
	}
	if s.Empty() {
		return "", fmt.Errorf("deployment/%s selects all pods", d.GetName())
	}
	return s.String(), nil
}
