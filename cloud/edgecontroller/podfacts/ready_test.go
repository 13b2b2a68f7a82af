package podfacts_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
)

func TestReadyAgain(t *testing.T) {
	gate := func(p *v1.Pod) { p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}} }
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		want   bool
	}{
		"marked":    {func(*v1.Pod) {}, true},
		"is Ready":  {func(p *v1.Pod) { p.Status.Conditions[1].Status = v1.ConditionTrue }, false},
		"not ready": {func(p *v1.Pod) { p.Status.Conditions[2].Status = v1.ConditionFalse }, false},
		"deleting":  {func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, false},
		"ended":     {func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }, false},
		"new":       {func(p *v1.Pod) { p.Status.Conditions = nil }, false},
		"no Ready":  {func(p *v1.Pod) { p.Status.Conditions = p.Status.Conditions[2:] }, false},
		"gate":      {gate, false},
		"closed gate": {func(p *v1.Pod) {
			gate(p)
			p.Status.Conditions = append(p.Status.Conditions, fakes.Condition("example.com/gate", v1.ConditionFalse))
		}, false},
		"open gate": {func(p *v1.Pod) {
			gate(p)
			p.Status.Conditions = append(p.Status.Conditions, fakes.Condition("example.com/gate", v1.ConditionTrue))
		}, true},
	} {
		p := fakes.MarkedPod("e1", "a")
		tc.change(p)
		if got := podfacts.ReadyAgain(p); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
