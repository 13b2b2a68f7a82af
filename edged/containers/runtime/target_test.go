package runtime

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// TestJoinTarget: a container joins the processes of its target, unless it has those of the pod or of the node anyway.
func TestJoinTarget(t *testing.T) {
	const target = runtimeapi.NamespaceMode_TARGET
	obs := &observed.Pod{Containers: []*observed.Container{
		{ID: "1", Name: "runs", State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		{ID: "2", Name: "ended", State: runtimeapi.ContainerState_CONTAINER_EXITED},
	}}
	for _, test := range []struct {
		name     string
		before   runtimeapi.NamespaceMode
		want     runtimeapi.NamespaceMode
		id, fail string
	}{
		{"runs", runtimeapi.NamespaceMode_CONTAINER, target, "1", ""},
		{"runs", runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_POD, "", ""},
		{"runs", runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE, "", ""},
		{
			"ended", runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_CONTAINER, "",
			"unable to find target container ended: it does not run",
		},
		{
			"none", runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_CONTAINER, "",
			"unable to find target container none",
		},
	} {
		options := &runtimeapi.NamespaceOption{Pid: test.before}
		config := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: options},
		}}
		text := ""
		if err := joinTarget(config, obs, test.name); err != nil {
			text = err.Error()
		}
		if options.GetPid() != test.want || options.GetTargetId() != test.id || text != test.fail {
			t.Errorf("joinTarget(%v, %q) = %v, %q, %q, want %v, %q, %q", test.before, test.name,
				options.GetPid(), options.GetTargetId(), text, test.want, test.id, test.fail)
		}
	}
}
