package restart

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func rule(
	action v1.ContainerRestartRuleAction, op v1.ContainerRestartRuleOnExitCodesOperator, codes ...int32,
) v1.ContainerRestartRule {
	return v1.ContainerRestartRule{
		Action: action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes},
	}
}

func TestAfter(t *testing.T) {
	const (
		again = v1.ContainerRestartRuleActionRestart
		all   = v1.ContainerRestartRuleActionRestartAllContainers
		in    = v1.ContainerRestartRuleOnExitCodesOpIn
		notIn = v1.ContainerRestartRuleOnExitCodesOpNotIn
	)
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for name, c := range map[string]struct {
		pod   v1.RestartPolicy
		own   v1.ContainerRestartPolicy
		rules []v1.ContainerRestartRule
		init  bool
		code  int32
		want  Action
	}{
		"Always, well":            {pod: always, want: Again},
		"Always, failed":          {pod: always, code: 1, want: Again},
		"OnFailure, well":         {pod: onFailure, want: Stay},
		"OnFailure, failed":       {pod: onFailure, code: 1, want: Again},
		"Never, failed":           {pod: never, code: 1, want: Stay},
		"own Never in Always":     {pod: always, own: "Never", code: 1, want: Stay},
		"own OnFailure in Never":  {pod: never, own: "OnFailure", code: 1, want: Again},
		"own OnFailure in Always": {pod: always, own: "OnFailure", want: Stay},
		"own Always in Never":     {pod: never, own: "Always", want: Again},
		"init, well, Always":      {pod: always, init: true, want: Stay},
		"init, failed, OnFailure": {pod: onFailure, init: true, code: 1, want: Again},
		"init, failed, Never":     {pod: never, init: true, code: 1, want: Stay},
		"init, own Never":         {pod: always, own: "Never", init: true, code: 1, want: Stay},
		"init, own OnFailure":     {pod: never, own: "OnFailure", init: true, code: 1, want: Again},
		"sidecar, well, Never":    {pod: never, own: "Always", init: true, want: Again},
		"rule In": {
			pod:   never,
			own:   "Never",
			rules: []v1.ContainerRestartRule{rule(again, in, 42)},
			code:  42,
			want:  Again,
		},
		"rule In, other code": {
			pod:   never,
			own:   "Never",
			rules: []v1.ContainerRestartRule{rule(again, in, 42)},
			code:  1,
			want:  Stay,
		},
		"rule NotIn": {
			pod:   never,
			own:   "Never",
			rules: []v1.ContainerRestartRule{rule(again, notIn, 42)},
			code:  1,
			want:  Again,
		},
		"rule NotIn, this code": {
			pod:   never,
			own:   "Never",
			rules: []v1.ContainerRestartRule{rule(again, notIn, 42)},
			code:  42,
			want:  Stay,
		},
		"rule without codes": {
			pod:   never,
			own:   "Never",
			rules: []v1.ContainerRestartRule{{Action: again}},
			code:  1,
			want:  Stay,
		},
		"rule for all": {
			pod:   never,
			own:   "Always",
			rules: []v1.ContainerRestartRule{rule(all, in, 88)},
			init:  true,
			code:  88,
			want:  All,
		},
		"first rule wins": {
			pod:   never,
			own:   "Never",
			rules: []v1.ContainerRestartRule{rule(again, in, 1), rule(all, in, 1)},
			code:  1,
			want:  Again,
		},
		"unknown action is passed by": {
			pod:   never,
			own:   "Never",
			rules: []v1.ContainerRestartRule{rule("Dance", in, 1)},
			code:  1,
			want:  Stay,
		},
	} {
		k := v1.Container{Name: "c", RestartPolicyRules: c.rules}
		if c.own != "" {
			k.RestartPolicy = ptr.To(c.own)
		}
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: c.pod}}
		if c.init {
			pod.Spec.InitContainers = []v1.Container{k}
		} else {
			pod.Spec.Containers = []v1.Container{k}
		}
		if got := After(pod, &k, c.code); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
