package source

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// TestValidateLifecycles: what the API server would refuse of a manifest is refused here, and names the field.
func TestValidateLifecycles(t *testing.T) {
	in := &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}}
	never := ptr.To(v1.ContainerRestartPolicyNever)
	hook := func(h v1.LifecycleHandler) func(*v1.PodSpec) {
		return func(s *v1.PodSpec) { s.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &h} }
	}
	for name, c := range map[string]struct {
		change func(*v1.PodSpec)
		want   string
	}{
		"nothing": {func(*v1.PodSpec) {}, ""},
		"deadline of 0": {func(s *v1.PodSpec) {
			s.ActiveDeadlineSeconds = ptr.To[int64](0)
		}, "spec.activeDeadlineSeconds"},
		"deadline": {func(s *v1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](1) }, ""},
		"ephemeral": {func(s *v1.PodSpec) {
			s.EphemeralContainers = []v1.EphemeralContainer{{}}
		}, "spec.ephemeralContainers"},
		"own policy": {func(s *v1.PodSpec) { s.Containers[0].RestartPolicy = never }, ""},
		"unknown policy": {func(s *v1.PodSpec) {
			s.Containers[0].RestartPolicy = ptr.To[v1.ContainerRestartPolicy]("Often")
		}, "spec.containers[0].restartPolicy"},
		"rules alone": {func(s *v1.PodSpec) {
			s.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: "Restart", ExitCodes: in}}
		}, "spec.containers[0].restartPolicyRules"},
		"rules": {func(s *v1.PodSpec) {
			s.Containers[0].RestartPolicy = never
			s.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: "Restart", ExitCodes: in}}
		}, ""},
		"unknown action": {func(s *v1.PodSpec) {
			s.Containers[0].RestartPolicy = never
			s.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: "Dance", ExitCodes: in}}
		}, "spec.containers[0].restartPolicyRules[0].action"},
		"no codes": {func(s *v1.PodSpec) {
			s.Containers[0].RestartPolicy = never
			s.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: "Restart"}}
		}, "spec.containers[0].restartPolicyRules[0].exitCodes"},
		"exec": {hook(v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"x"}}}), ""},
		"exec of nothing": {
			hook(v1.LifecycleHandler{Exec: &v1.ExecAction{}}), "spec.containers[0].lifecycle.preStop.exec.command",
		},
		"no handler": {hook(v1.LifecycleHandler{}), "spec.containers[0].lifecycle.preStop"},
		"two handlers": {
			hook(v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"x"}}, Sleep: &v1.SleepAction{}}),
			"spec.containers[0].lifecycle.preStop",
		},
		"http by name": {hook(v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("web")}}), ""},
		"http without": {
			hook(v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{}}),
			"spec.containers[0].lifecycle.preStop.httpGet.port",
		},
		"sleep": {hook(v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 30}}), ""},
		"sleep too long": {
			hook(v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 31}}),
			"spec.containers[0].lifecycle.preStop.sleep.seconds",
		},
		"signal alone": {func(s *v1.PodSpec) {
			s.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: ptr.To(v1.SIGUSR1)}
		}, "spec.containers[0].lifecycle.stopSignal"},
		"hook of an init": {func(s *v1.PodSpec) {
			s.InitContainers[0].Lifecycle = &v1.Lifecycle{}
		}, "spec.initContainers[0].lifecycle"},
		"probe of an init": {func(s *v1.PodSpec) {
			s.InitContainers[0].ReadinessProbe = &v1.Probe{
				ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(1)}},
			}
		}, "spec.initContainers[0].readinessProbe"},
		"hook of a sidecar": {func(s *v1.PodSpec) {
			s.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
			s.InitContainers[0].Lifecycle = &v1.Lifecycle{}
		}, ""},
	} {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"}, Spec: v1.PodSpec{
				InitContainers: []v1.Container{{Name: "i", Image: "img:1"}},
				Containers:     []v1.Container{{Name: "c", Image: "img:1"}},
			},
		}
		c.change(&pod.Spec)
		SetDefaults(pod)
		switch err := Validate(pod); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v, want no error", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want+": ")):
			t.Errorf("%s: %v, want a fault of %s", name, err, c.want)
		}
	}
}
