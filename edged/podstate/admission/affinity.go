package admission

import (
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// answer is the result of a label query when some labels may be unknown.
type answer int

const (
	yes answer = iota
	unknown
	no
)

// ofMachine are the labels that describe the machine; they never change.
var ofMachine = []string{
	v1.LabelHostname, v1.LabelOSStable, v1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// matches reports whether a node is one that a pod selects, by nodeSelector and required node affinity.
func matches(node Node, pod *v1.Pod) answer {
	label := func(key string) (value string, there, sure bool) {
		value, there = node.Labels[key]
		return value, there, node.Whole || Static(pod) || there && slices.Contains(ofMachine, key)
	}
	result := yes
	for key, want := range pod.Spec.NodeSelector {
		result = max(result,
			requirement(v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{want}},
				label))
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		result = max(result,
			anyTerm(node.Name, a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, label))
	}
	return result
}

// anyTerm reports whether one of the terms holds; a term without requirements holds for no node.
func anyTerm(name string, terms []v1.NodeSelectorTerm, label func(string) (string, bool, bool)) answer {
	result := no
	for _, t := range terms {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			continue
		}
		holds := yes
		for _, r := range t.MatchExpressions {
			holds = max(holds, requirement(r, label))
		}
		for _, r := range t.MatchFields {
			holds = max(holds, requirement(r, func(key string) (string, bool, bool) {
				return name, key == metav1.ObjectNameField, true
			}))
		}
		result = min(result, holds)
	}
	return result
}

// requirement reports whether one requirement holds. One that cannot be understood holds for no node.
func requirement(r v1.NodeSelectorRequirement, label func(string) (string, bool, bool)) answer {
	value, there, sure := label(r.Key)
	holds := false
	switch r.Operator {
	case v1.NodeSelectorOpIn:
		holds = there && slices.Contains(r.Values, value)
	case v1.NodeSelectorOpNotIn:
		holds = !there || !slices.Contains(r.Values, value)
	case v1.NodeSelectorOpExists:
		holds = there
	case v1.NodeSelectorOpDoesNotExist:
		holds = !there
	case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
		holds = there && compares(r, value)
	}
	switch {
	case holds && (there || sure):
		return yes
	case sure:
		return no
	}
	return unknown
}

// compares reports whether a label is a number above or below that of a requirement.
func compares(r v1.NodeSelectorRequirement, value string) bool {
	if len(r.Values) != 1 {
		return false
	}
	have, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return false
	}
	bound, err := strconv.ParseInt(r.Values[0], 10, 64)
	if err != nil {
		return false
	}
	if r.Operator == v1.NodeSelectorOpGt {
		return have > bound
	}
	return have < bound
}

// tolerates reports whether a pod tolerates the taints that would end it.
func tolerates(pod *v1.Pod, taints []v1.Taint) bool {
	for _, taint := range taints {
		if taint.Effect == v1.TaintEffectNoExecute &&
			!slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
				return tolerated(t, taint)
			}) {
			return false
		}
	}
	return true
}

func tolerated(t v1.Toleration, taint v1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", v1.TolerationOpEqual:
		return t.Key != "" && t.Value == taint.Value
	case v1.TolerationOpExists:
		return true
	case v1.TolerationOpGt, v1.TolerationOpLt:
		return compares(v1.NodeSelectorRequirement{
			Operator: v1.NodeSelectorOperator(t.Operator), Values: []string{t.Value},
		}, taint.Value)
	}
	return false
}
