package floor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
)

// Like is what an agent asked the runtime for to run a pod. A floor that is to be compared with the agent asks for
// the same: mounts, security settings and resources cost the runtime time, too.
type Like struct {
	box  *runtimeapi.PodSandboxConfig
	main *runtimeapi.ContainerConfig
}

// Of reads what a running container and its sandbox were made of. What is mounted is copied into a folder, since
// the pod will end.
func Of(ctx context.Context, client *cri.Client, container, dir string) (*Like, error) {
	status, err := client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{
		ContainerId: container, Verbose: true,
	})
	if err != nil {
		return nil, err
	}
	var of struct {
		Sandbox string                      `json:"sandboxID"`
		Config  *runtimeapi.ContainerConfig `json:"config"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &of); err != nil || of.Config == nil {
		return nil, fmt.Errorf("the runtime does not tell what container %s was made of: %w", container, err)
	}
	box, err := client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{
		PodSandboxId: of.Sandbox, Verbose: true,
	})
	if err != nil {
		return nil, err
	}
	var ofBox struct {
		Config *runtimeapi.PodSandboxConfig `json:"config"`
	}
	if err := json.Unmarshal([]byte(box.Info["info"]), &ofBox); err != nil || ofBox.Config == nil {
		return nil, fmt.Errorf("the runtime does not tell what sandbox %s was made of: %w", of.Sandbox, err)
	}
	for i, m := range of.Config.Mounts {
		to := filepath.Join(dir, fmt.Sprintf("mount-%d", i))
		if err := keep(m.HostPath, to); err != nil {
			return nil, err
		}
		m.HostPath = to
	}
	return &Like{box: ofBox.Config, main: of.Config}, nil
}

// keep copies what is mounted, a file or the folder of a volume.
func keep(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

func (l *Like) sandbox(name, logs, cgroup string) *runtimeapi.PodSandboxConfig {
	config := proto.CloneOf(l.box)
	config.Metadata = &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "floor", Uid: name}
	config.Hostname, config.LogDirectory = name, logs
	config.Labels = owned(config.Labels, name)
	// As deep as the agent's, in a tree of the floor's own.
	depth := strings.Count(strings.Trim(config.Linux.CgroupParent, "/"), "/")
	for range depth - strings.Count(strings.Trim(cgroup, "/"), "/") - 1 {
		cgroup = filepath.Join(cgroup, "besteffort")
	}
	config.Linux.CgroupParent = filepath.Join(cgroup, "pod"+name)
	return config
}

func (l *Like) container(name string) *runtimeapi.ContainerConfig {
	config := proto.CloneOf(l.main)
	config.Metadata = &runtimeapi.ContainerMetadata{Name: "main"}
	config.Labels = owned(config.Labels, name)
	config.LogPath = "main_0.log"
	return config
}

// owned makes labels those of a pod of the floor, which no agent takes for one that it should end.
func owned(labels map[string]string, name string) map[string]string {
	own := map[string]string{"floor": name}
	for key, value := range labels {
		own["floor/"+key] = value
	}
	return own
}
