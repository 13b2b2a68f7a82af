package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Apply prints the plan and carries it out, or finishes an Apply that was interrupted. An error says how to go on or
// back.
func (a *Adoption) Apply(ctx context.Context) error {
	p, j, err := a.plan(ctx, true)
	if err != nil || p == nil {
		return err
	}
	if !j.running() {
		if j, err = a.startJournal(ctx, p, j); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
	}
	return a.finish(ctx, p, j)
}

// finish carries out a plan that is in the journal.
func (a *Adoption) finish(ctx context.Context, p *Plan, j *journal) error {
	if err := a.carryOut(ctx, p, j); err != nil {
		return fmt.Errorf("%w\n`cloudcore adopt apply` goes on from here, `cloudcore adopt undo` goes back", err)
	}
	a.printLine("edgecore's cloudcore has taken over. `cloudcore adopt undo` goes back.")
	return nil
}

// startJournal saves all that will be deleted or replaced. past is the journal of an undo that has left CRDs, or nil.
func (a *Adoption) startJournal(ctx context.Context, p *Plan, past *journal) (*journal, error) {
	j := &journal{Phase: applying, At: time.Now().UTC().Truncate(time.Second), Image: p.Image}
	if past != nil {
		j.stored = past.stored
	}
	save := func(o *unstructured.Unstructured) { j.originals = append(j.originals, withoutServerFields(o)) }
	for _, s := range p.Steps {
		switch {
		case s.Verb == skip:
		case s.Original == nil:
			j.Created = append(j.Created, s.Ref)
		default:
			save(s.Original)
		}
	}
	for _, ref := range append(savedRefs(), keptRefs()...) {
		o, err := a.api.get(ctx, ref)
		if err != nil {
			return nil, err
		}
		if o != nil {
			save(o)
		}
	}
	ca, err := a.api.get(ctx, secret(caSecret))
	if err != nil {
		return nil, err
	}
	j.CA = caSum(ca)
	if err := a.saveJournal(ctx, j); err != nil {
		return nil, err
	}
	a.printLine("Saved %s in secret/%s", count(len(j.originals), "object"), journalName)
	return j, nil
}

func (a *Adoption) carryOut(ctx context.Context, p *Plan, j *journal) error {
	if slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Kind == "Deployment" }) {
		err := a.stop(ctx, func(o *unstructured.Unstructured) bool { return !isOurs(o) }, "KubeEdge's")
		if err != nil {
			return err
		}
	}
	var last *unstructured.Unstructured
	for _, s := range p.Steps {
		if s.Verb == skip {
			continue
		}
		if err := a.write(ctx, s); err != nil {
			return err
		}
		if s.Kind == "Deployment" {
			last = s.Object
		}
	}
	a.printLine("Wrote %s", count(len(p.Steps), "object"))
	if last != nil {
		if err := a.awaitReady(ctx, refOf(last)); err != nil {
			return err
		}
	}
	// The controller of aggregated roles may have written its rules once more, of what it knew of the role before.
	for _, s := range p.Steps {
		if s.Kind == "ClusterRole" {
			if err := a.repairRules(ctx, s); err != nil {
				return err
			}
		}
	}
	j.Phase = applied
	return a.saveJournal(ctx, j)
}

// write creates the object of a step, or replaces the one that is there.
func (a *Adoption) write(ctx context.Context, s Step) error {
	now, err := a.api.get(ctx, s.Ref)
	switch {
	case err != nil:
		return err
	case now == nil:
		return a.api.create(ctx, s.Object)
	case !s.Rewrite && now.GetAnnotations()[adoptedAnnotation] == s.Object.GetAnnotations()[adoptedAnnotation]:
		return nil
	}
	return a.replaceOrRecreate(ctx, now, s.Object)
}

// repairRules writes a ClusterRole again if its rules differ from its step's.
func (a *Adoption) repairRules(ctx context.Context, s Step) error {
	now, err := a.api.get(ctx, s.Ref)
	if err != nil || now == nil {
		return errors.Join(err, missing(now, s.Ref))
	}
	if equalJSON(now.Object["rules"], s.Object.Object["rules"]) && now.Object["aggregationRule"] == nil {
		return nil
	}
	return a.api.replace(ctx, now, s.Object)
}

func missing(o *unstructured.Unstructured, ref Ref) error {
	if o != nil {
		return nil
	}
	return fmt.Errorf("%s was deleted by someone else", ref)
}

// stop deletes cloudcore's Deployment, if it is the one that is to go, and waits until its pods are gone: two clouds
// would answer for the same nodes, and pods on the host's network need its ports.
func (a *Adoption) stop(ctx context.Context, toGo func(*unstructured.Unstructured) bool, whose string) error {
	now, err := a.api.get(ctx, deployment(name))
	if err != nil || now == nil || !toGo(now) {
		return err
	}
	// The pods end before the Deployment is deleted: a second run that finds no Deployment need not wait for them.
	if err := a.scaleDown(ctx, now); err != nil {
		return err
	}
	a.printLine("Stopping %s cloudcore: devices keep their pods, and reconnect when the other one runs", whose)
	var left []v1.Pod
	err = a.poll(ctx, func() (string, error) {
		var err error
		if left, err = a.podsOf(ctx, now); err != nil || len(left) == 0 {
			return "", err
		}
		return fmt.Sprintf("%s of %s cloudcore left, such as %s", count(len(left), "pod"), whose, left[0].Name), nil
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("%w on node %q. If that node is lost for good, `kubectl -n %s delete pod %s --force` "+
			"forgets the pod", err, left[0].Spec.NodeName, Namespace, left[0].Name)
	}
	if err != nil {
		return err
	}
	if now, err = a.api.get(ctx, deployment(name)); err != nil || now == nil {
		return err
	}
	if err := a.api.delete(ctx, now); err != nil {
		return err
	}
	a.printLine("Deleted %s deployment/%s", whose, name)
	return nil
}

// scaleDown sets a Deployment's replicas to 0.
func (a *Adoption) scaleDown(ctx context.Context, now *unstructured.Unstructured) error {
	if replicas, ok, _ := unstructured.NestedInt64(now.Object, "spec", "replicas"); ok && replicas == 0 {
		return nil
	}
	next := now.DeepCopy()
	if err := unstructured.SetNestedField(next.Object, int64(0), "spec", "replicas"); err != nil {
		return err
	}
	return a.api.replace(ctx, now, next)
}
