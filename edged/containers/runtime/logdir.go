package runtime

import (
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// LogDir is the folder of a pod's logs; those of a container lie in one below it that is named after the container.
func (r *Runtime) LogDir(pod *v1.Pod) string {
	return r.podLogDir(pod.Namespace, pod.Name, string(pod.UID))
}

// LogPath is the file into which a container's output goes.
func (r *Runtime) LogPath(pod *observed.Pod, c *observed.Container) string {
	if c.LogPath != "" {
		return c.LogPath
	}
	return filepath.Join(r.podLogDir(pod.Namespace, pod.Name, string(pod.UID)), c.Name,
		strconv.Itoa(int(c.Attempt))+".log")
}
