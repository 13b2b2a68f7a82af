package admission

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func selects(key, value string) *v1.Pod {
	p := pod()
	p.Spec.NodeSelector = map[string]string{key: value}
	return p
}

// requires makes a pod whose node has to meet one of the terms, each of requirements "key operator value,value".
func requires(terms ...string) *v1.Pod {
	var list []v1.NodeSelectorTerm
	for _, term := range terms {
		var t v1.NodeSelectorTerm
		for part := range strings.SplitSeq(term, ";") {
			f := strings.Fields(part)
			if len(f) < 2 {
				continue
			}
			r := v1.NodeSelectorRequirement{Key: f[0], Operator: v1.NodeSelectorOperator(f[1])}
			if len(f) > 2 {
				r.Values = strings.Split(f[2], ",")
			}
			if r.Key == "metadata.name" {
				t.MatchFields = append(t.MatchFields, r)
			} else {
				t.MatchExpressions = append(t.MatchExpressions, r)
			}
		}
		list = append(list, t)
	}
	p := pod()
	p.Spec.Affinity = &v1.Affinity{
		NodeAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: list},
		},
	}
	return p
}

// TestNodeAffinity: a pod of a scheduler is rejected for what the machine is, and in doubt for what the cloud may
// have said of it; a static pod by the labels of the configuration; with the Node at hand by that alone.
func TestNodeAffinity(t *testing.T) {
	own := map[string]string{v1.LabelHostname: "edge-1", v1.LabelOSStable: "linux", v1.LabelArchStable: "amd64",
		"site": "roof", "size": "5"}
	const reject, doubt, admit = "rejected", "doubt", "admitted"
	for name, c := range map[string]struct {
		pod                 func() *v1.Pod
		bound, static, node string
	}{
		"machine":           {func() *v1.Pod { return selects(v1.LabelArchStable, "amd64") }, admit, admit, admit},
		"other machine":     {func() *v1.Pod { return selects(v1.LabelArchStable, "arm64") }, reject, reject, reject},
		"own label":         {func() *v1.Pod { return selects("site", "roof") }, admit, admit, admit},
		"own label changed": {func() *v1.Pod { return selects("site", "cellar") }, doubt, reject, reject},
		"unknown label":     {func() *v1.Pod { return selects("disk", "ssd") }, doubt, reject, reject},
		"exists":            {func() *v1.Pod { return requires("site Exists") }, admit, admit, admit},
		"unknown not there": {func() *v1.Pod { return requires("disk DoesNotExist") }, doubt, admit, admit},
		"unknown not in":    {func() *v1.Pod { return requires("disk NotIn hdd") }, doubt, admit, admit},
		"above":             {func() *v1.Pod { return requires("size Gt 4") }, admit, admit, admit},
		"not above":         {func() *v1.Pod { return requires("size Gt 5") }, doubt, reject, reject},
		"below": {func() *v1.Pod { return requires("size Lt 6; " + v1.LabelOSStable + " In linux") },
			admit, admit, admit},
		"no number": {func() *v1.Pod { return requires("site Gt 1") }, doubt, reject, reject},
		"one of the terms": {func() *v1.Pod { return requires(v1.LabelArchStable+" In arm64", "site In roof") },
			admit, admit, admit},
		"one is in doubt": {func() *v1.Pod { return requires(v1.LabelArchStable+" In arm64", "disk Exists") },
			doubt, reject, reject},
		"none": {func() *v1.Pod {
			return requires(v1.LabelArchStable+" In arm64", v1.LabelArchStable+" In riscv64")
		}, reject, reject, reject},
		"an empty term": {func() *v1.Pod { return requires("") }, reject, reject, reject},
		"name":          {func() *v1.Pod { return requires("metadata.name In edge-1") }, admit, admit, admit},
		"other name":    {func() *v1.Pod { return requires("metadata.name In edge-2") }, reject, reject, reject},
		"operator of nowhere": {func() *v1.Pod { return requires(v1.LabelOSStable + " Like linux") }, reject, reject,
			reject},
	} {
		t.Run(name, func(t *testing.T) {
			for what, k := range map[string]struct {
				got  Verdict
				want string
			}{
				"bound":  {Admit(Node{Name: "edge-1", Labels: own}, c.pod(), nil), c.bound},
				"static": {Admit(Node{Name: "edge-1", Labels: own}, static(c.pod()), nil), c.static},
				"node":   {Admit(Node{Name: "edge-1", Labels: own, Whole: true}, c.pod(), nil), c.node},
			} {
				got := admit
				if k.got.Doubt {
					got = doubt
				}
				if r := k.got.Rejected; r != nil {
					got = reject
					if r.Reason != "NodeAffinity" ||
						r.Message != "Predicate NodeAffinity failed: node(s) didn't match Pod's node "+
							"affinity/selector" {
						t.Errorf("%s: %+v, want reason NodeAffinity and the scheduler's message", what, r)
					}
				}
				if got != k.want {
					t.Errorf("%s: %s, want %s", what, got, k.want)
				}
			}
		})
	}
}

func TestTaints(t *testing.T) {
	taint := v1.Taint{Key: "maintenance", Value: "5", Effect: v1.TaintEffectNoExecute}
	for name, c := range map[string]struct {
		toleration *v1.Toleration
		taint      v1.Taint
		ok         bool
	}{
		"none":        {nil, taint, false},
		"NoSchedule":  {nil, v1.Taint{Key: "k", Effect: v1.TaintEffectNoSchedule}, true},
		"equal":       {&v1.Toleration{Key: "maintenance", Value: "5"}, taint, true},
		"other value": {&v1.Toleration{Key: "maintenance", Operator: v1.TolerationOpEqual, Value: "6"}, taint, false},
		"exists": {
			&v1.Toleration{Key: "maintenance", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}, taint,
			true,
		},
		"everything": {&v1.Toleration{Operator: v1.TolerationOpExists}, taint, true},
		"other effect": {&v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}, taint,
			false},
		"other key":     {&v1.Toleration{Key: "other", Operator: v1.TolerationOpExists}, taint, false},
		"no key, equal": {&v1.Toleration{Value: "5"}, taint, false},
		"greater":       {&v1.Toleration{Key: "maintenance", Operator: v1.TolerationOpGt, Value: "4"}, taint, true},
		"not less":      {&v1.Toleration{Key: "maintenance", Operator: v1.TolerationOpLt, Value: "4"}, taint, false},
	} {
		p := pod()
		if c.toleration != nil {
			p.Spec.Tolerations = []v1.Toleration{*c.toleration}
		}
		node := Node{Whole: true, Taints: []v1.Taint{c.taint}}
		r := Admit(node, p, nil).Rejected
		if (r == nil) != c.ok ||
			r != nil &&
				(r.Reason != "TaintToleration" ||
					r.Message != "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate") {
			t.Errorf("%s: rejected for %+v, want admitted: %v", name, r, c.ok)
		}
		if r := Admit(node, static(p), nil).Rejected; r != nil {
			t.Errorf("%s: static pod rejected for %+v, want it admitted whatever the taints", name, r)
		}
		if node.Whole = false; Admit(node, p, nil).Rejected != nil {
			t.Errorf("%s: rejected for taints that may be old, want admitted", name)
		}
	}
}
