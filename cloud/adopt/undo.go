package adopt

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/nodeidentity"
	"github.com/edgecore-io/edgecore/cloud/replicas"
)

// Undo restores KubeEdge's cloudcore as it was and removes edgecore's, or finishes an Undo that was interrupted.
// Without an adoption it does nothing.
func (a *Adoption) Undo(ctx context.Context) error {
	j, err := a.loadJournal(ctx)
	if err != nil {
		return err
	}
	if j == nil {
		a.printLine("There is nothing to undo: the cluster has no secret/%s of an adoption.", journalName)
		return nil
	}
	if j.Phase == undone {
		return a.retry(ctx, j)
	}
	if j.Phase != undoing {
		if !a.SkipDryRun {
			if err := (&rehearsal{Adoption: a}).undo(ctx, j); err != nil {
				return fmt.Errorf("%w; nothing was changed", err)
			}
		}
		if err := a.warnUndoneRights(ctx, j); err != nil {
			return err
		}
		j.Phase = undoing
		if err := a.saveJournal(ctx, j); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
	}
	if err := a.goBack(ctx, j); err != nil {
		return fmt.Errorf("%w\n`cloudcore adopt undo` goes on from here", err)
	}
	a.printLine("The objects of KubeEdge's cloudcore are back.")
	return nil
}

// retry tries once more to restore the CRDs that an undo has left.
func (a *Adoption) retry(ctx context.Context, j *journal) error {
	a.printLine("KubeEdge's cloudcore is back already, but for %s", count(len(j.originals), "CRD"))
	var left []*unstructured.Unstructured
	for _, o := range j.originals {
		now, err := a.api.get(ctx, refOf(o))
		if err != nil {
			return err
		}
		if now != nil && !isLeft(now) && !equalJSON(withoutServerFields(now).Object, o.Object) {
			a.printLine("%s was replaced by someone else since, and stays as it is", refOf(o))
			continue
		}
		stays, err := a.restore(ctx, o)
		switch {
		case err != nil:
			return fmt.Errorf("%w\n`cloudcore adopt undo` goes on from here", err)
		case stays:
			left = append(left, o)
		default:
			a.printLine("Restored %s", refOf(o))
		}
	}
	return a.conclude(ctx, j, left)
}

// conclude ends an undo: the journal keeps the CRDs that were left.
func (a *Adoption) conclude(ctx context.Context, j *journal, left []*unstructured.Unstructured) error {
	if len(left) == 0 {
		return a.api.delete(ctx, j.stored)
	}
	j.Phase, j.originals, j.Created = undone, left, nil
	if err := a.saveJournal(ctx, j); err != nil {
		return err
	}
	a.printLine("secret/%s keeps KubeEdge's CRDs of those that were left.", journalName)
	return nil
}

func (a *Adoption) goBack(ctx context.Context, j *journal) error {
	a.printLine("Going back to KubeEdge's cloudcore of %s", j.At.Format(time.RFC3339))
	if err := a.stop(ctx, isOurs, "edgecore's"); err != nil {
		return err
	}
	if err := a.forgetHolders(ctx); err != nil {
		return err
	}
	if err := a.deleteLeases(ctx); err != nil {
		return err
	}
	if err := a.warnCA(ctx, j); err != nil {
		return err
	}
	originals := slices.Clone(j.originals)
	slices.SortStableFunc(originals, func(x, y *unstructured.Unstructured) int {
		return rank(x.GetKind()) - rank(y.GetKind())
	})
	var left []*unstructured.Unstructured
	for _, o := range originals {
		if o.GetKind() == "Deployment" {
			continue
		}
		stays, err := a.restore(ctx, o)
		if err != nil {
			return err
		}
		if stays {
			left = append(left, o)
		}
	}
	if err := a.remove(ctx, j.Created); err != nil {
		return err
	}
	for _, o := range originals {
		if o.GetKind() == "Deployment" {
			if _, err := a.restore(ctx, o); err != nil {
				return err
			}
		}
	}
	a.printLine("Restored %s", count(len(originals)-len(left), "object"))
	if j.original(deployment(name)) != nil {
		err := a.awaitReady(ctx, deployment(name))
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			// Nothing in the journal helps to make it ready, and it would be in the way of the next adoption.
			a.printLine("warning: KubeEdge's cloudcore is not ready: %v\n"+
				"Its objects are as they were, and nothing is left to undo. To see why: kubectl -n %s describe pods",
				err, Namespace)
		}
	}
	return a.conclude(ctx, j, left)
}

// warnCA warns if the CA that devices trust is gone. An undo also warns if the CA has changed since the adoption:
// edgecore's cloudcore knows both CAs of a rotation, and KubeEdge's knows one.
func (a *Adoption) warnCA(ctx context.Context, j *journal) error {
	ca, err := a.api.get(ctx, secret(caSecret))
	switch {
	case err != nil:
		return err
	case ca == nil && j.CA != "":
		a.printLine("warning: secret/%s, the CA that devices trust, is gone. Restore it from a backup before "+
			"cloudcore starts again: it would make another one, and each device would have to join again", caSecret)
	case j.Phase == undoing && caSum(ca) != j.CA:
		a.printLine("warning: secret/%s has changed since, and stays as it is: KubeEdge's cloudcore refuses devices "+
			"whose certificate the CA in it has not signed", caSecret)
	}
	return nil
}

// restore makes an object be the saved one. left reports that it is a CRD that has to stay as it is.
func (a *Adoption) restore(ctx context.Context, saved *unstructured.Unstructured) (left bool, err error) {
	now, err := a.api.get(ctx, refOf(saved))
	if err == nil && saved.GetKind() == "Service" {
		saved, err = a.withoutTaken(ctx, now, saved)
	}
	switch {
	case err != nil:
		return false, err
	case now == nil:
		return false, a.api.create(ctx, saved)
	case slices.Contains(keptRefs(), refOf(saved)):
		return false, nil // an adoption does not change it
	case len(leftCRD(now, saved)) > 0:
		return a.restoreCRD(ctx, now, saved)
	case saved.GetKind() == "Deployment" && equalJSON(now.Object["spec"], saved.Object["spec"]):
		return false, nil // its controller may have annotated it since
	case equalJSON(withoutServerFields(now).Object, saved.Object):
		return false, nil
	}
	return false, a.replaceOrRecreate(ctx, now, saved)
}

// remove deletes what the adoption has created, but for the kinds whose objects devices depend on.
func (a *Adoption) remove(ctx context.Context, created []Ref) error {
	for _, ref := range slices.Backward(created) {
		now, err := a.api.get(ctx, ref)
		if err != nil {
			return err
		}
		if !isOurs(now) {
			continue
		}
		if ref.Kind == crdKind || ref.Kind == "Namespace" {
			a.printLine("Left: %s, which KubeEdge did not have; this deletes it and all its objects: %s", ref,
				ref.deleteCommand())
			continue
		}
		if err := a.api.delete(ctx, now); err != nil {
			return err
		}
	}
	return nil
}

// forgetHolders removes which device each node belongs to: certificates of KubeEdge's cloudcore do not say it, and a
// later adoption would refuse them.
func (a *Adoption) forgetHolders(ctx context.Context) error {
	nodes, err := a.api.list(ctx, Ref{"v1", "Node", "", ""}, nodeidentity.HolderLabel)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, nodeidentity.HolderLabel)
	for _, n := range nodes {
		client, err := a.api.clientFor(refOf(&n))
		if err != nil {
			return err
		}
		_, err = client.Patch(ctx, n.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
		if err != nil {
			return fmt.Errorf("node %s: remove label %s: %w", n.GetName(), nodeidentity.HolderLabel, err)
		}
	}
	return nil
}

// deleteLeases deletes the Leases by which edgecore's cloudcores find each other.
func (a *Adoption) deleteLeases(ctx context.Context) error {
	leases, err := a.api.list(ctx, Ref{"coordination.k8s.io/v1", "Lease", Namespace, ""}, replicas.Selector)
	if meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range leases {
		if err := a.api.delete(ctx, &leases[i]); err != nil {
			return err
		}
	}
	return nil
}
