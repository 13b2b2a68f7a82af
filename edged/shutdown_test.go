package edged

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestStartsAgain(t *testing.T) {
	for _, c := range []struct {
		policy       v1.RestartPolicy
		static, want bool
	}{
		{v1.RestartPolicyAlways, false, true},
		{v1.RestartPolicyAlways, true, true},
		{v1.RestartPolicyOnFailure, false, false},
		{v1.RestartPolicyOnFailure, true, true},
		{v1.RestartPolicyNever, false, false},
		{v1.RestartPolicyNever, true, false},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: c.policy}}
		if got := startsAgain(pod, c.static); got != c.want {
			t.Errorf("startsAgain(%s, static %t) = %t, want %t", c.policy, c.static, got, c.want)
		}
	}
}
