package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// rehearsal asks the API server for all that an adoption or its undo will ask for, without changing anything, and keeps
// what it refuses.
type rehearsal struct {
	*Adoption
	refused []error
}

// conclude prints what was refused. The error is ErrRefused if anything was.
func (r *rehearsal) conclude() error {
	for _, err := range r.refused {
		remedy := "remove that cause"
		switch {
		case strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"),
			strings.Contains(err.Error(), "admission webhook"):
			remedy = "change the admission policy or webhook that the message names, or let it make an exception"
		case apierrors.IsForbidden(err), errors.Is(err, errNotAllowed):
			remedy = "run it as a cluster admin, who may also escalate and bind roles"
		}
		r.printLine("REFUSED: %v\n  remedy: %s", err, remedy)
	}
	if len(r.refused) > 0 {
		return ErrRefused
	}
	return nil
}

// check keeps an error of the API server.
func (r *rehearsal) check(err error) {
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "does not support dry run"):
		r.printLine("warning: not tried beforehand: %v", err)
	default:
		r.refused = append(r.refused, err)
	}
}

// checkAllowed checks that each of the verbs is allowed for an object.
func (r *rehearsal) checkAllowed(ctx context.Context, ref Ref, verbs ...string) {
	for _, verb := range verbs {
		r.check(r.api.allowed(ctx, verb, ref))
	}
}

// apply tries the steps of a plan, and what its undo will do.
func (r *rehearsal) apply(ctx context.Context, p *Plan) error {
	r.checkAllowed(ctx, secret(journalName), "create", "update", "delete")
	r.checkAllowed(ctx, deployment(name), "update", "delete")
	for _, s := range p.Steps {
		if s.Verb == skip {
			continue
		}
		now, err := r.api.get(ctx, s.Ref)
		if err != nil {
			return err
		}
		r.write(ctx, now, s.Object)
		switch {
		case s.Original == nil:
			r.checkAllowed(ctx, s.Ref, "delete")
		case isRBAC(s.Ref) || s.Kind == "Deployment":
			r.check(ignoreMissingRole(s.Ref, r.api.tryCreate(ctx, s.Original)))
		}
	}
	r.goBack(ctx)
	return r.conclude()
}

// undo tries what an undo will do.
func (r *rehearsal) undo(ctx context.Context, j *journal) error {
	r.checkAllowed(ctx, secret(journalName), "update", "delete")
	r.checkAllowed(ctx, deployment(name), "update", "delete")
	for _, o := range j.originals {
		now, err := r.api.get(ctx, refOf(o))
		if err != nil {
			return err
		}
		switch {
		case len(leftCRD(now, o)) > 0:
			if err := r.restoreCRD(ctx, now, o); err != nil {
				return err
			}
		case now != nil && (slices.Contains(keptRefs(), refOf(o)) ||
			equalJSON(withoutServerFields(now).Object, o.Object)):
		default:
			r.write(ctx, now, o)
		}
	}
	for _, ref := range j.Created {
		if ref.Kind != crdKind {
			r.checkAllowed(ctx, ref, "delete")
		}
	}
	r.goBack(ctx)
	return r.conclude()
}

// goBack checks what only an undo does.
func (r *rehearsal) goBack(ctx context.Context) {
	r.checkAllowed(ctx, Ref{APIVersion: "v1", Kind: "Node"}, "list", "patch")
	lease := Ref{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: Namespace}
	r.checkAllowed(ctx, lease, "list", "delete")
}

// write tries to make an object be next. now is what is there, or nil.
func (r *rehearsal) write(ctx context.Context, now, next *unstructured.Unstructured) {
	ref := refOf(next)
	if now == nil && ref.Kind == crdKind {
		r.check(r.api.tryCreateAs(ctx, next, ref.Name)) // its name follows from its content
		return
	}
	if now != nil && ref.Kind != "Deployment" {
		err := r.api.tryUpdate(ctx, now, next)
		if !isUnchangeable(err) || ref.Kind == crdKind {
			r.check(err)
			return
		}
		r.checkAllowed(ctx, ref, "delete") // then it is created again
	}
	if ref.Kind == "Service" {
		var err error
		if next, err = withoutAllocated(next); err != nil {
			r.check(err)
			return
		}
	}
	r.check(ignoreMissingRole(ref, r.api.tryCreate(ctx, next)))
}

func isRBAC(ref Ref) bool { return strings.HasPrefix(ref.APIVersion, "rbac.authorization.k8s.io/") }

// ignoreMissingRole leaves out that a binding's role does not exist yet: the role's step comes first.
func ignoreMissingRole(ref Ref, err error) error {
	if isRBAC(ref) && slices.Contains([]string{"RoleBinding", "ClusterRoleBinding"}, ref.Kind) &&
		apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// errNotAllowed says that this user may not send a request.
var errNotAllowed = errors.New("this user may not do it")

// allowed returns an error unless this user may send a request about an object.
func (a *api) allowed(ctx context.Context, verb string, ref Ref) error {
	m, err := a.mapping(ref)
	if err != nil {
		return err
	}
	attributes := map[string]any{
		"verb": verb, "group": m.Resource.Group, "version": m.Resource.Version, "resource": m.Resource.Resource,
		"namespace": ref.Namespace, "name": ref.Name,
	}
	review := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": attributes},
	}}
	client, err := a.clientFor(refOf(review))
	if err != nil {
		return err
	}
	answer, err := client.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask whether %s %s is allowed: %w", verb, ref, err)
	}
	if yes, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); !yes {
		return fmt.Errorf("%s %s: %w", verb, ref, errNotAllowed)
	}
	return nil
}
