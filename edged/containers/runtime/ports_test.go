package runtime

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func TestPortMappings(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{
			{Name: "init", Ports: []v1.ContainerPort{{ContainerPort: 1}}},
			{
				Name:          "sidecar",
				RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways),
				Ports:         []v1.ContainerPort{{ContainerPort: 2, HostPort: 20, Protocol: v1.ProtocolUDP}},
			},
		},
		Containers: []v1.Container{{Name: "main", Ports: []v1.ContainerPort{
			{ContainerPort: 3, Protocol: v1.ProtocolTCP},
			{ContainerPort: 4, HostPort: 40, HostIP: "127.0.0.1", Protocol: v1.ProtocolSCTP},
			{ContainerPort: 3, Protocol: v1.ProtocolTCP},
			{Name: "web", ContainerPort: 5},
			{Name: "web", ContainerPort: 6},
		}}},
	}}
	want := []*runtimeapi.PortMapping{
		{Protocol: runtimeapi.Protocol_UDP, ContainerPort: 2, HostPort: 20},
		{ContainerPort: 3},
		{Protocol: runtimeapi.Protocol_SCTP, ContainerPort: 4, HostPort: 40, HostIp: "127.0.0.1"},
		{ContainerPort: 5},
	}
	if diff := cmp.Diff(want, portMappings(pod), protocmp.Transform()); diff != "" {
		t.Errorf("port mappings, - want, + got:\n%s", diff)
	}
}
