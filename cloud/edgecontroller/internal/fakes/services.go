package fakes

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Service returns a Service with an address.
func Service(namespace, name, ip string) *v1.Service {
	return &v1.Service{
		ObjectMeta: ObjectMeta(namespace, name, "1"),
		Spec:       v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Port: 80}}},
	}
}

// LargeService is a Service with everything that may be large, and ports.
func LargeService(name, version string, ports int) *v1.Service {
	s := Service("ns", name, "10.0.0.2")
	large := strings.Repeat("x", 16<<10)
	s.ResourceVersion = version
	s.Annotations, s.Labels = map[string]string{"large": large}, map[string]string{"app": "db"}
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: large}}
	s.Finalizers, s.Spec.ExternalIPs = []string{large}, []string{large}
	s.Spec.Selector = map[string]string{"app": large}
	s.Status.Conditions = []metav1.Condition{{Message: large}}
	s.Spec.Type, s.Spec.ClusterIPs = v1.ServiceTypeClusterIP, []string{"10.0.0.2"}
	s.Spec.Ports = nil
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name:       fmt.Sprint("port-", i),
			Protocol:   v1.ProtocolTCP,
			Port:       int32(i) + 1,
			TargetPort: intstr.FromString("http"),
			NodePort:   30000,
		})
	}
	return s
}
