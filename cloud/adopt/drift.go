package adopt

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// drift is an object of a finished adoption that is no longer edgecore's.
type drift struct {
	Step
	why string
}

// checkDrift compares what a finished adoption has written with what is there. Helm knows nothing of the adoption: it
// may have deleted edgecore's objects or merged KubeEdge's into them. If write is set, these are written again;
// otherwise it is an error that there are any.
func (a *Adoption) checkDrift(ctx context.Context, j *journal, write bool) error {
	p, err := a.makePlan(ctx, j)
	if err != nil {
		return err
	}
	drifts, err := a.drifts(ctx, p, j)
	if err != nil {
		return err
	}
	if err := a.warnCA(ctx, j); err != nil {
		return err
	}
	since := j.At.Format(time.RFC3339)
	if len(drifts) == 0 {
		a.printLine("KubeEdge's cloudcore was replaced by edgecore's at %s; nothing is left to do.\n"+
			"`cloudcore adopt undo` goes back.", since)
		return nil
	}
	a.printLine("KubeEdge's cloudcore was replaced by edgecore's at %s, but not all objects are edgecore's any "+
		"more:", since)
	p.Steps = nil
	for _, d := range drifts {
		a.printLine("  %s %s", d.Ref, d.why)
		if err := a.warnRewritten(ctx, d.Step); err != nil {
			return err
		}
		d.Rewrite = true
		p.Steps = append(p.Steps, d.Step)
	}
	if err := p.Err(); err != nil {
		p.Print(a.Out)
		return fmt.Errorf("%w; nothing was changed", err)
	}
	if !write {
		return fmt.Errorf("not all objects are edgecore's any more: `cloudcore adopt apply` writes %s again, "+
			"`cloudcore adopt undo` goes back", count(len(drifts), "object"))
	}
	if !a.SkipDryRun {
		if err := (&rehearsal{Adoption: a}).apply(ctx, p); err != nil {
			return fmt.Errorf("%w; nothing was changed", err)
		}
	}
	return a.finish(ctx, p, j)
}

// drifts returns the objects that the adoption has written and that are gone, or have values of KubeEdge's again. What
// an operator has changed in edgecore's objects since is left alone.
func (a *Adoption) drifts(ctx context.Context, p *Plan, j *journal) ([]drift, error) {
	var out []drift
	for _, s := range p.Steps {
		if s.Verb == skip || s.Original == nil && !slices.Contains(j.Created, s.Ref) {
			continue
		}
		now, err := a.api.get(ctx, s.Ref)
		if err != nil {
			return nil, err
		}
		if now == nil {
			out = append(out, drift{s, "is missing"})
			continue
		}
		if s.Original == nil || s.Kind == crdKind {
			continue
		}
		// with the defaults that the API server sets
		want, err := a.api.sendUpdate(ctx, now, s.Object, metav1.DryRunAll)
		if isUnchangeable(err) {
			want, err = s.Object, nil // what cannot be changed is not edgecore's
		}
		if err != nil {
			return nil, fmt.Errorf("replace %s (dry run): %w", s.Ref, err)
		}
		before := asked(s.Original)
		if isOurs(now) && now.GetAnnotations()[adoptedAnnotation] != s.Object.GetAnnotations()[adoptedAnnotation] {
			// Another version of edgecore has written it, and may want what KubeEdge's had. Helm sets its labels.
			before = map[string]any{"metadata": before["metadata"]}
		}
		if path := returned(before, asked(want), asked(now), ""); path != "" {
			out = append(out, drift{s, "has KubeEdge's value again in " + path[1:]})
		}
	}
	return out, nil
}

// asked returns what of an object somebody has asked for.
func asked(o *unstructured.Unstructured) map[string]any {
	out := maps.Clone(o.Object)
	delete(out, "status")
	annotations := o.GetAnnotations()
	delete(annotations, v1.LastAppliedConfigAnnotation)
	delete(annotations, "deployment.kubernetes.io/revision")
	notes := map[string]any{}
	for key, value := range annotations {
		notes[key] = value
	}
	labels := map[string]any{}
	for key, value := range o.GetLabels() {
		labels[key] = value
	}
	out["metadata"] = map[string]any{"labels": labels, "annotations": notes}
	return out
}

// returned returns the path of the first value in which now is as before, although it should be as in want; "" if there
// is none.
func returned(before, want, now map[string]any, path string) string {
	for _, key := range slices.Sorted(maps.Keys(before)) {
		at := path + "." + key
		old, isTree := before[key].(map[string]any)
		current, still := now[key].(map[string]any)
		if isTree && still {
			wanted, _ := want[key].(map[string]any)
			if found := returned(old, wanted, current, at); found != "" {
				return found
			}
			continue
		}
		value, exists := now[key]
		if exists && equalJSON(value, before[key]) && !equalJSON(value, want[key]) {
			return at
		}
	}
	return ""
}
