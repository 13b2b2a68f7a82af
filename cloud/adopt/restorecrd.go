package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// restoreCRD puts a saved CRD in the place of one with stored versions that it lacks. It takes the steps that
// Kubernetes documents for removing a version: another version becomes the storage version, no object is left in the
// old one, status.storedVersions no longer names it, and then the CRD is without it. An object that was stored in the
// old version would lose what the other does not have: if there are objects, the CRD stays, and left is true.
func (a *Adoption) restoreCRD(ctx context.Context, now, saved *unstructured.Unstructured) (left bool, err error) {
	lacking := leftCRD(now, saved)
	between := crdBetween(now, saved, lacking)
	before, after := crdOf(now), crdOf(between)
	found, err := a.awaitObjects(ctx, &before)
	if err != nil {
		return false, err
	}
	if found.first != "" {
		a.sayLeft(saved, lacking, found)
		return true, nil
	}
	if err := a.api.replace(ctx, now, between); err != nil {
		return false, err
	}
	if err := a.awaitUnserved(ctx, &after, lacking); err != nil {
		return false, err
	}
	if found, err = a.awaitObjects(ctx, &after); err != nil {
		return false, err
	}
	if found.first != "" { // it was created meanwhile
		a.sayLeft(saved, lacking, found)
		return true, a.replaceCRD(ctx, withoutServerFields(now))
	}
	if err := a.api.dropStored(ctx, refOf(saved), lacking); err != nil {
		return false, err
	}
	return false, a.replaceCRD(ctx, saved)
}

// replaceCRD replaces a CRD that is there.
func (a *Adoption) replaceCRD(ctx context.Context, next *unstructured.Unstructured) error {
	now, err := a.api.get(ctx, refOf(next))
	if err != nil || now == nil {
		return errors.Join(err, missing(now, refOf(next)))
	}
	return a.api.replace(ctx, now, next)
}

// betweenMark is the value of adoptedAnnotation at a CRD that is on its way back to KubeEdge's.
const betweenMark = "going-back"

// crdBetween returns the saved CRD with the versions that it lacks, which nobody may use any more. A version is served,
// so that objects can be listed.
func crdBetween(now, saved *unstructured.Unstructured, lacking []string) *unstructured.Unstructured {
	out := saved.DeepCopy()
	versions, _, _ := unstructured.NestedSlice(out.Object, "spec", "versions")
	served := len(crdOf(saved).served) > 0
	for _, entry := range versions {
		if v, _ := entry.(map[string]any); v["storage"] == true && !served {
			v["served"] = true
		}
	}
	old, _, _ := unstructured.NestedSlice(now.Object, "spec", "versions")
	for _, entry := range old {
		v, _ := entry.(map[string]any)
		if version, _ := v["name"].(string); slices.Contains(lacking, version) {
			v["served"], v["storage"] = false, false
			versions = append(versions, v)
		}
	}
	_ = unstructured.SetNestedSlice(out.Object, versions, "spec", "versions") // it has been read from there
	annotations := out.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[adoptedAnnotation] = betweenMark
	delete(annotations, v1.LastAppliedConfigAnnotation) // see isLeft
	out.SetAnnotations(annotations)
	return out
}

// awaitObjects returns the objects of a CRD, once the API server serves it.
func (a *Adoption) awaitObjects(ctx context.Context, c *crd) (found some, err error) {
	if len(c.served) == 0 {
		return some{first: "unknown, because no version is served"}, nil
	}
	err = a.poll(ctx, func() (string, error) {
		var err error
		if found, err = a.api.objectsOf(ctx, c, c.served[0]); apierrors.IsNotFound(err) {
			return err.Error(), nil
		}
		return "", err
	})
	return found, err
}

// awaitUnserved waits until the API server no longer serves versions of a CRD: it has seen the CRD then, and writes
// objects in its storage version.
func (a *Adoption) awaitUnserved(ctx context.Context, c *crd, versions []string) error {
	return a.poll(ctx, func() (string, error) {
		for _, v := range versions {
			_, err := a.api.objectsOf(ctx, c, v)
			if err == nil {
				return fmt.Sprintf("kube-apiserver still serves %s of %s", v, c.plural), nil
			}
			if !apierrors.IsNotFound(err) {
				return "", err
			}
		}
		return "", nil
	})
}

// sayLeft says why a CRD is not KubeEdge's, and what an operator can do.
func (a *Adoption) sayLeft(saved *unstructured.Unstructured, lacking []string, found some) {
	was := crdOf(saved)
	a.printLine("Left: %s is not KubeEdge's yet. Objects may be stored as %s, which KubeEdge's does not have, and "+
		"kube-apiserver refuses a CRD without a version in which objects may be stored. The objects are: %s. Do not "+
		"create or change them with KubeEdge before its CRD is back: what only %s has of them would be lost. To put "+
		"it back, save the objects, delete them, and let undo try again:\n"+
		"  kubectl get %[5]s -A -o yaml > %[6]s.yaml\n  kubectl delete %[5]s -A --all\n  cloudcore adopt undo",
		refOf(saved), strings.Join(lacking, ", "), found, was.storage, saved.GetName(), was.plural)
}

// dropStored removes versions from those in which objects of a CRD may be stored.
func (a *api) dropStored(ctx context.Context, ref Ref, versions []string) error {
	for range maxRaces {
		now, err := a.get(ctx, ref)
		if err != nil {
			return err
		}
		if now == nil {
			return missing(now, ref)
		}
		kept := slices.DeleteFunc(crdOf(now).stored, func(v string) bool { return slices.Contains(versions, v) })
		if err := unstructured.SetNestedStringSlice(now.Object, kept, "status", "storedVersions"); err != nil {
			return err
		}
		if err = a.putStatus(ctx, now); !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("replace the status of %s: other clients keep changing it", ref)
}

// putStatus updates the status of an object that was read.
func (a *api) putStatus(ctx context.Context, o *unstructured.Unstructured, dryRun ...string) error {
	client, err := a.clientFor(refOf(o))
	if err != nil {
		return err
	}
	if _, err = client.UpdateStatus(ctx, o, metav1.UpdateOptions{FieldManager: manager, DryRun: dryRun}); err != nil {
		return fmt.Errorf("replace the status of %s: %w", refOf(o), err)
	}
	return nil
}

// restoreCRD tries what Adoption.restoreCRD does.
func (r *rehearsal) restoreCRD(ctx context.Context, now, saved *unstructured.Unstructured) error {
	old := crdOf(now)
	found, err := r.awaitObjects(ctx, &old)
	if err != nil || found.first != "" {
		return err
	}
	r.check(r.api.tryUpdate(ctx, now, crdBetween(now, saved, leftCRD(now, saved))))
	r.check(r.api.putStatus(ctx, now, metav1.DryRunAll))
	return nil
}
