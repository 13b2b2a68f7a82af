package edgecontroller

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	patch, err := tolerationPatch(pod(nil), node)
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
		if patch, err := tolerationPatch(tc.pod, tc.node); patch != nil || err != nil {
			t.Errorf("%s: patch %s, %v; want none", name, patch, err)
		}
	}
	if patch, _ := tolerationPatch(pod(keep("false")), node); patch == nil {
		t.Error(`patch with the annotation "false" = nil, want one: only "true" opts out`)
	}
}

// TestSentAsItIs: a node is sent the pod that the API server has, also one whose tolerations are about to be changed.
func TestSentAsItIs(t *testing.T) {
	w := newFixture(t)
	bound := fakes.Pod("e1", "ns", "a")
	bound.Generation = 1
	bound.Spec.Tolerations = limited(300)
	w.add(fakes.Node("e1"), bound)
	o, err := w.Object("e1", podKey(bound))
	if err != nil {
		t.Fatal(err)
	}
	var sent v1.Pod
	if err := json.Unmarshal(o.JSON, &sent); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(bound.Spec.Tolerations, sent.Spec.Tolerations); diff != "" || sent.Generation != 1 {
		t.Errorf("the pod is sent with generation %d, want 1; tolerations (-want +got):\n%s", sent.Generation, diff)
	}
}

func limited(seconds int64) []v1.Toleration {
	var all []v1.Toleration
	for _, key := range unlimitedTaints {
		all = append(all, v1.Toleration{
			Key:               key,
			Operator:          v1.TolerationOpExists,
			Effect:            v1.TaintEffectNoExecute,
			TolerationSeconds: &seconds,
		})
	}
	return all
}

// TestTolerationSync: one patch in cloudcore's own name, and what its failures lead to.
func TestTolerationSync(t *testing.T) {
	w := newFixture(t)
	w.add(fakes.Node("e1"), fakes.Pod("e1", "ns", "a"), fakes.Pod("server", "ns", "b"))
	status := func(code int, reason metav1.StatusReason) func(fakes.Call) (int, any) {
		return func(fakes.Call) (int, any) {
			return code, metav1.Status{Status: "Failure", Reason: reason, Code: int32(code)}
		}
	}
	for name, tc := range map[string]struct {
		reply func(fakes.Call) (int, any)
		check func(error) bool
	}{
		"done": {func(fakes.Call) (int, any) {
			return 200, map[string]string{"kind": "Pod", "apiVersion": "v1"}
		}, func(err error) bool { return err == nil }},
		"gone": {nil, func(err error) bool { return err == nil }},
		"old":  {status(409, metav1.StatusReasonConflict), apierrors.IsConflict},
		"down": {status(500, metav1.StatusReasonInternalError), func(err error) bool {
			return err != nil && !apierrors.IsConflict(err)
		}},
	} {
		w.api.Answer(tc.reply)
		if err := w.tolerations.sync(t.Context(), "ns/a/uid-a"); !tc.check(err) {
			t.Errorf("%s: unexpected result: %v", name, err)
		}
		if diff := cmp.Diff([]string{"PATCH /api/v1/namespaces/ns/pods/a as cloudcore"}, w.api.Seen()); diff != "" {
			t.Errorf("%s: calls mismatch (-want +got):\n%s", name, diff)
		}
	}
	w.api.Answer(nil)
	for _, k := range []string{"ns/b/uid-b", "ns/none/uid", "ns/a/another", "a/b"} {
		if err := w.tolerations.sync(t.Context(), k); (err != nil) != (k == "a/b") || w.api.Seen() != nil {
			t.Errorf("%s: %v, calls %v; want an error for nonsense alone, and no call", k, err, w.api.Seen())
		}
	}
}

// TestTolerationQueue: the pods of a node that is connected elsewhere wait a while.
func TestTolerationQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, noAddress)
		w.add(fakes.Node("e1"), fakes.Pod("e1", "ns", "a"), fakes.Pod("e1", "ns", "b"))
		w.Connected(t.Context(), "e1", "websocket")
		w.tolerations.nodeChanged("e1")
		if n := w.tolerations.Keys.Len(); n != 2 {
			t.Errorf("%d pods wait, want 2", n)
		}
		w.tolerations.podChanged(fakes.Pod("server", "ns", "c"))
		w.Disconnected("e1", "")
		w.tolerations.podChanged(fakes.Pod("e1", "ns", "later")) // the cloudcore that has the node is to go first
		time.Sleep(elsewhereDelay - 1)
		synctest.Wait()
		if n := w.tolerations.Keys.Len(); n != 2 {
			t.Errorf("%d pods wait before %v have passed, want 2", n, elsewhereDelay)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := w.tolerations.Keys.Len(); n != 3 {
			t.Errorf("%d pods wait after %v, want 3", n, elsewhereDelay)
		}
	})
}
