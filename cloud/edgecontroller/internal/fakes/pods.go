package fakes

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// WholePod returns pod ns/p of e1 in a version.
func WholePod(version string) *v1.Pod {
	pod := Pod("e1", "ns", "p")
	pod.ResourceVersion = version
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "test"}}
	return pod
}

// Fillers fill a pod with as much memory as possible for its bytes at the API server.
func Fillers() map[string]func(pod *v1.Pod, n int) {
	text := strings.Repeat("x", 100)
	return map[string]func(pod *v1.Pod, n int){
		"volumes": func(pod *v1.Pod, n int) {
			for i := range n {
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint(i),
					VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
			}
		},
		"containers": func(pod *v1.Pod, n int) {
			for i := range n {
				pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint(i), Image: "i"})
			}
		},
		"environment": func(pod *v1.Pod, n int) {
			pod.Spec.Containers[0].Env = make([]v1.EnvVar, n)
			for i := range n {
				pod.Spec.Containers[0].Env[i].Name = fmt.Sprint(i)
			}
		},
		"labels": func(pod *v1.Pod, n int) {
			pod.Labels = map[string]string{}
			for i := range n {
				pod.Labels[fmt.Sprint("label-", i)] = text
			}
		},
		"references": func(pod *v1.Pod, n int) {
			for i := range n {
				pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets,
					v1.LocalObjectReference{Name: fmt.Sprint(i)})
			}
		},
		"tolerations": func(pod *v1.Pod, n int) {
			for i := range n {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: v1.TaintNodeNotReady,
					Value: fmt.Sprint(i), Operator: v1.TolerationOpExists})
			}
		},
		"gates": func(pod *v1.Pod, n int) {
			for i := range n {
				pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, v1.PodReadinessGate{
					ConditionType: v1.PodConditionType(fmt.Sprint(i))})
			}
		},
		"conditions": func(pod *v1.Pod, n int) {
			for i := range n {
				pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodReady,
					Message: fmt.Sprint(i)})
			}
		},
		"annotations": func(pod *v1.Pod, n int) {
			pod.Annotations = map[string]string{v1.MirrorPodAnnotationKey: strings.Repeat("x", n),
				marks.KeepEvictions: strings.Repeat("x", n)}
		},
		"finalizers": func(pod *v1.Pod, n int) {
			for i := range n {
				pod.Finalizers = append(pod.Finalizers, fmt.Sprint("example.com/", i))
			}
		},
	}
}
