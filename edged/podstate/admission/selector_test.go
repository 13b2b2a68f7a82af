package admission

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestSelects(t *testing.T) {
	labels := map[string]string{"zone": "a", "slots": "7"}
	term := func(key string, op v1.NodeSelectorOperator, values ...string) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}},
		}
	}
	for name, tc := range map[string]struct {
		terms []v1.NodeSelectorTerm
		want  bool
	}{
		"no term":       {nil, false},
		"an empty term": {[]v1.NodeSelectorTerm{{}}, false},
		"a value":       {[]v1.NodeSelectorTerm{term("zone", v1.NodeSelectorOpIn, "b", "a")}, true},
		"another value": {[]v1.NodeSelectorTerm{term("zone", v1.NodeSelectorOpIn, "b")}, false},
		"one of two terms": {
			[]v1.NodeSelectorTerm{term("zone", v1.NodeSelectorOpNotIn, "a"), term("slots", v1.NodeSelectorOpGt, "6")},
			true,
		},
		"a missing label": {[]v1.NodeSelectorTerm{term("rack", v1.NodeSelectorOpExists)}, false},
		"the name": {[]v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"edge"}}}}}, true},
	} {
		if got := Selects("edge", labels, &v1.NodeSelector{NodeSelectorTerms: tc.terms}); got != tc.want {
			t.Errorf("%s: Selects = %v, want %v", name, got, tc.want)
		}
	}
}
