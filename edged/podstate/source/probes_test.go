package source

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestValidateProbes(t *testing.T) {
	tcp := v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}}
	for want, c := range map[string]struct {
		container v1.Container
		init      bool
	}{
		"": {
			v1.Container{LivenessProbe: &v1.Probe{ProbeHandler: tcp, TerminationGracePeriodSeconds: ptr.To(int64(1))},
				ReadinessProbe: &v1.Probe{ProbeHandler: tcp, SuccessThreshold: 3}}, false,
		},
		"must 1": {}, // replaced below: a valid sidecar
		"spec.containers[0].livenessProbe: Required value: must specify a handler type": {
			v1.Container{LivenessProbe: &v1.Probe{}}, false,
		},
		"spec.containers[0].startupProbe.successThreshold: Invalid value: 2: must be 1": {
			v1.Container{StartupProbe: &v1.Probe{ProbeHandler: tcp, SuccessThreshold: 2}}, false,
		},
		"spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 3: must not be set for " +
			"readinessProbes": {
			v1.Container{ReadinessProbe: &v1.Probe{ProbeHandler: tcp, TerminationGracePeriodSeconds: ptr.To(int64(3))}},
			false,
		},
		"spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must not be negative": {
			v1.Container{LivenessProbe: &v1.Probe{ProbeHandler: tcp, PeriodSeconds: -1}}, false,
		},
		"spec.containers[0].livenessProbe.exec.command: Required value": {
			v1.Container{LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{}}}}, false,
		},
		"spec.containers[0].livenessProbe.httpGet.port: Invalid value: 0": {
			v1.Container{LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{}}}}, false,
		},
		"spec.containers[0].livenessProbe: Forbidden: may not specify more than 1 handler type": {
			v1.Container{
				LivenessProbe: &v1.Probe{
					ProbeHandler: v1.ProbeHandler{TCPSocket: tcp.TCPSocket, GRPC: &v1.GRPCAction{Port: 1}},
				},
			}, false,
		},
		"spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0": {
			v1.Container{LivenessProbe: &v1.Probe{ProbeHandler: tcp, TerminationGracePeriodSeconds: ptr.To(int64(0))}},
			false,
		},
		"spec.containers[0].livenessProbe.httpGet.httpHeaders[0].name: Invalid value: \"a b\": a valid HTTP header " +
			"must consist of": {
			v1.Container{
				LivenessProbe: &v1.Probe{
					ProbeHandler: v1.ProbeHandler{
						HTTPGet: &v1.HTTPGetAction{
							Port: intstr.FromInt32(1), HTTPHeaders: []v1.HTTPHeader{{Name: "a b"}},
						},
					},
				},
			}, false,
		},
		"spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: \"a name that is too long\": must be no " +
			"more than 15 characters": {
			v1.Container{
				LivenessProbe: &v1.Probe{
					ProbeHandler: v1.ProbeHandler{
						TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("a name that is too long")},
					},
				},
			}, false,
		},
	} {
		if want == "must 1" {
			want, c.init = "", true
			c.container = v1.Container{
				RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), StartupProbe: &v1.Probe{ProbeHandler: tcp},
			}
		}
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "img:1"}}},
		}
		if c.container.Name, c.container.Image = "main", "img:1"; c.init {
			c.container.Name = "init"
			pod.Spec.InitContainers = []v1.Container{c.container}
		} else {
			pod.Spec.Containers = []v1.Container{c.container}
		}
		SetDefaults(pod)
		err := Validate(pod)
		if want == "" && err != nil {
			t.Errorf("valid probes: %v, want no error", err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
