package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// isUnchangeable reports whether an update was refused for the value of a field, such as one that cannot be changed. An
// admission policy that refuses it has the same reason, but names no field.
func isUnchangeable(err error) bool {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field != "" })
}

// replaceOrRecreate replaces an object; one with fields that cannot be changed is deleted and created, unless its
// deletion would delete others, or the API server would not accept the other object.
func (a *Adoption) replaceOrRecreate(ctx context.Context, now, next *unstructured.Unstructured) error {
	refused := a.api.replace(ctx, now, next)
	if !isUnchangeable(refused) ||
		slices.Contains([]string{crdKind, "Namespace"}, now.GetKind()) {
		return refused
	}
	probe := next
	if next.GetKind() == "Service" {
		var err error
		if probe, err = withoutAllocated(next); err != nil {
			return err
		}
	}
	if err := a.api.tryCreate(ctx, probe); err != nil {
		return fmt.Errorf("%w; it was not deleted to create it again: %w", refused, err)
	}
	if err := a.api.delete(ctx, now); err != nil {
		return err
	}
	return a.api.create(ctx, next)
}

// withoutAllocated returns a Service without the addresses and node ports that it cannot have as long as the one that
// it replaces has them.
func withoutAllocated(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return typed(o.DeepCopy(), func(s *v1.Service) {
		if s.Spec.ClusterIP != v1.ClusterIPNone {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}
		s.Spec.HealthCheckNodePort = 0
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	})
}

// withoutTaken returns a Service to restore without the node ports that other Services have taken meanwhile. The API
// server gives those ports others. now is the Service that it replaces, nil if there is none.
func (a *Adoption) withoutTaken(ctx context.Context, now, saved *unstructured.Unstructured) (
	*unstructured.Unstructured, error,
) {
	want, err := as(saved, &v1.Service{})
	if err != nil {
		return nil, err
	}
	held := map[int32]bool{}
	if now != nil {
		current, err := as(now, &v1.Service{})
		if err != nil {
			return nil, err
		}
		for _, at := range current.Spec.Ports {
			held[at.NodePort] = true
		}
	}
	taken := map[int32]bool{}
	for _, at := range want.Spec.Ports {
		if at.NodePort == 0 || held[at.NodePort] || taken[at.NodePort] {
			continue
		}
		err := a.api.tryCreate(ctx, portProbe(refOf(saved), at))
		if err != nil && !isUnchangeable(err) {
			return nil, err
		}
		if err != nil {
			taken[at.NodePort] = true
			a.printLine("warning: node port %d is not free any more: port %q of %s gets another one (%v)", at.NodePort,
				at.Name, refOf(saved), err)
		}
	}
	if len(taken) == 0 {
		return saved, nil
	}
	ports, _, err := unstructured.NestedSlice(saved.Object, "spec", "ports")
	if err != nil {
		return nil, err
	}
	for i := range ports {
		if at, _ := ports[i].(map[string]any); taken[want.Spec.Ports[i].NodePort] {
			delete(at, "nodePort")
		}
	}
	out := saved.DeepCopy()
	return out, unstructured.SetNestedSlice(out.Object, ports, "spec", "ports")
}

// portProbe is a Service with one node port.
func portProbe(ref Ref, at v1.ServicePort) *unstructured.Unstructured {
	protocol := at.Protocol
	if protocol == "" {
		protocol = v1.ProtocolTCP
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": ref.APIVersion, "kind": ref.Kind,
		"metadata": map[string]any{"name": ref.Name, "namespace": ref.Namespace},
		"spec": map[string]any{
			"type": string(v1.ServiceTypeNodePort),
			"ports": []any{map[string]any{
				"port": int64(at.Port), "protocol": string(protocol), "nodePort": int64(at.NodePort),
			}},
		},
	}}
}
