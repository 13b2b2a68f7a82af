package evictions

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

func TestUnlimited(t *testing.T) {
	tol := func(key string, op v1.TolerationOperator, effect v1.TaintEffect, seconds *int64) v1.Toleration {
		return v1.Toleration{Key: key, Operator: op, Effect: effect, TolerationSeconds: seconds}
	}
	const notReady, unreachable = v1.TaintNodeNotReady, v1.TaintNodeUnreachable
	const exists, noExecute = v1.TolerationOpExists, v1.TaintEffectNoExecute
	five := new(int64(300))
	ours := []v1.Toleration{tol(notReady, exists, noExecute, nil), tol(unreachable, exists, noExecute, nil)}
	gpu := tol("gpu", "Equal", "NoSchedule", nil)
	for name, tc := range map[string]struct{ have, want []v1.Toleration }{
		"none": {nil, ours},
		"the defaults": {
			[]v1.Toleration{tol(notReady, exists, noExecute, five), tol(unreachable, exists, noExecute, five)}, ours,
		},
		"ours": {ours, nil},
		"another first": {
			[]v1.Toleration{gpu, tol(unreachable, exists, noExecute, five)}, []v1.Toleration{gpu, ours[1], ours[0]},
		},
		"every taint":    {[]v1.Toleration{tol("", exists, "", nil)}, nil},
		"every eviction": {[]v1.Toleration{tol("", exists, noExecute, nil)}, nil},
		"every effect": {[]v1.Toleration{tol(notReady, exists, "", five), tol(unreachable, exists, "", nil)},
			[]v1.Toleration{tol(notReady, exists, "", nil), tol(unreachable, exists, "", nil)}},
		"with empty value": {
			[]v1.Toleration{tol(notReady, "", noExecute, nil), tol(unreachable, "Equal", noExecute, five)},
			[]v1.Toleration{tol(notReady, "", noExecute, nil), tol(unreachable, "Equal", noExecute, nil)},
		},
		"of another effect": {
			[]v1.Toleration{tol(notReady, exists, "NoSchedule", nil), ours[1]},
			[]v1.Toleration{tol(notReady, exists, "NoSchedule", nil), ours[1], ours[0]},
		},
		"twice, one limited": {
			[]v1.Toleration{ours[0], ours[1], tol(notReady, exists, "", new(int64(5)))},
			[]v1.Toleration{ours[0], ours[1], tol(notReady, exists, "", nil)},
		},
		"every taint, limits": {
			[]v1.Toleration{tol("", exists, noExecute, five)}, append([]v1.Toleration{tol("", exists, noExecute, five)},
				ours...),
		},
		"of a value": {[]v1.Toleration{{
			Key:      notReady,
			Operator: "Equal",
			Value:    "x",
			Effect:   noExecute,
		}, ours[1]}, []v1.Toleration{{
			Key:      notReady,
			Operator: "Equal",
			Value:    "x",
			Effect:   noExecute,
		}, ours[1], ours[0]}},
		"a new operator": {[]v1.Toleration{{Key: notReady, Operator: "Gt", Value: "1"}, ours[0], ours[1]}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprint(tc.have)
			got, changed := unlimited(tc.have)
			want := tc.want
			if want == nil {
				want = tc.have
			}
			if diff := cmp.Diff(want, got); diff != "" || changed != (tc.want != nil) {
				t.Errorf("changed %v (-want +got):\n%s", changed, diff)
			}
			if fmt.Sprint(tc.have) != before {
				t.Errorf("the pod's own list = %v, want %s as before", tc.have, before)
			}
			if _, again := unlimited(got); again {
				t.Errorf("%v changes again, want it left as it is", got)
			}
		})
	}
}

func TestTolerationPatch(t *testing.T) {
	node := fakes.Node("e1")
	keeps := fakes.Node("e1")
	keeps.Annotations = map[string]string{marks.KeepEvictions: "true"}
	pod := func(change func(*v1.Pod)) *v1.Pod {
		p := fakes.Pod("e1", "ns", "a")
		if change != nil {
			change(p)
		}
		return p
	}
	keep := func(value string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Annotations = map[string]string{marks.KeepEvictions: value, "a": "b"} }
	}
	patch, err := Patch(pod(nil), node)
	var got struct {
		Metadata struct{ UID, ResourceVersion string }
		Spec     struct{ Tolerations []v1.Toleration }
	}
	if err := errors.Join(err, json.Unmarshal(patch, &got)); err != nil || got.Metadata.UID != "uid-a" ||
		got.Metadata.ResourceVersion != "1" || len(got.Spec.Tolerations) != 2 {
		t.Errorf("patch %s, %v; want the UID, the version and two tolerations", patch, err)
	}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		node *v1.Node
	}{
		"its node keeps": {pod(nil), keeps},
		"it keeps": {pod(func(p *v1.Pod) {
			p.Annotations = map[string]string{marks.KeepEvictions: "true"}
		}), node},
		"mirror": {pod(func(p *v1.Pod) { p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "h"} }),
			node},
		"ended":         {pod(func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }), node},
		"failed":        {pod(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }), node},
		"deleting":      {pod(func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }), node},
		"nothing to do": {pod(func(p *v1.Pod) { p.Spec.Tolerations, _ = unlimited(nil) }), node},
		"keeps otherwise": {pod(keep("true")),
			keeps},
	} {
		if patch, err := Patch(tc.pod, tc.node); patch != nil || err != nil {
			t.Errorf("%s: patch %s, %v; want none", name, patch, err)
		}
	}
	if patch, _ := Patch(pod(keep("false")), node); patch == nil {
		t.Error(`patch with the annotation "false" = nil, want one: only "true" opts out`)
	}
}
