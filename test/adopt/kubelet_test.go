package adopt

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/local/adopt"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// made is a pod that runs as a kubelet has made it.
type made struct {
	pod       *v1.Pod
	sandbox   string
	container string
}

// podFolder is the pod's, in the kubelet's place.
func (d *device) podFolder(pod *v1.Pod, more ...string) string {
	return filepath.Join(append([]string{d.path("var/lib/edged/pods"), string(pod.UID)}, more...)...)
}

// volume makes a volume the way kubelets write those of configmaps and the like: the files in a folder of their own,
// with links to it, that an update may replace in one step. Secrets and tokens are in memory.
func (d *device) volume(pod *v1.Pod, plugin, name string, memory bool, files map[string]string) string {
	dir := d.podFolder(pod, "volumes", "kubernetes.io~"+plugin, name)
	env.Must(d.t, os.MkdirAll(dir, 0o777))
	env.Must(d.t, os.Chmod(dir, 0o777))
	if memory {
		env.Must(d.t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1048576"))
	}
	const stamp = "..2026_11_21_03_25_03.123456789"
	env.Must(d.t, os.Mkdir(filepath.Join(dir, stamp), 0o755))
	env.Must(d.t, os.Symlink(stamp, filepath.Join(dir, "..data")))
	for file, text := range files {
		env.Must(d.t, os.WriteFile(filepath.Join(dir, stamp, file), []byte(text), 0o644))
		env.Must(d.t, os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)))
	}
	ready := d.podFolder(pod, "plugins", "kubernetes.io~"+plugin, name)
	env.Must(d.t, os.MkdirAll(ready, 0o750))
	env.Must(d.t, os.WriteFile(filepath.Join(ready, "ready"), nil, 0o600))
	return dir
}

// start runs a pod of one container as a kubelet before 1.31 does. restarts is how often the container was started
// again.
func (d *device) start(pod *v1.Pod, restarts int, static bool, mounts map[string]string) *made {
	c := &pod.Spec.Containers[0]
	logs := filepath.Join(d.path("var/log/pods"), pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	env.Must(d.t, os.MkdirAll(filepath.Join(logs, c.Name), 0o755))
	labels := map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace,
		"io.kubernetes.pod.uid": string(pod.UID)}
	annotations := map[string]string{
		"kubernetes.io/config.seen": "2026-11-21T03:25:03.1Z", "kubernetes.io/config.source": "api",
	}
	if static {
		annotations["kubernetes.io/config.source"], annotations["kubernetes.io/config.hash"] = "file", string(pod.UID)
	}
	network, hostname := runtimeapi.NamespaceMode_POD, pod.Name
	if pod.Spec.HostNetwork {
		network, hostname = runtimeapi.NamespaceMode_NODE, ""
	}
	namespaces := &runtimeapi.NamespaceOption{Network: network, Pid: runtimeapi.NamespaceMode_CONTAINER}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Hostname: hostname, LogDirectory: logs, Labels: maps.Clone(labels), Annotations: annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    d.ctrd.CgroupParent("kubepods/besteffort/pod" + string(pod.UID)),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: namespaces},
		},
	}
	box, err := d.cri.RunPodSandbox(d.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	env.Must(d.t, err)

	hosts := d.podFolder(pod, "etc-hosts")
	env.Must(d.t, os.MkdirAll(d.podFolder(pod, "containers", c.Name), 0o750))
	env.Must(d.t, os.WriteFile(hosts, []byte("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"), 0o644))
	message := d.podFolder(pod, "containers", c.Name, "8f2c11aa")
	env.Must(d.t, os.WriteFile(message, nil, 0o666))
	list := []*runtimeapi.Mount{
		{ContainerPath: "/etc/hosts", HostPath: hosts}, {ContainerPath: c.TerminationMessagePath, HostPath: message},
	}
	for inside, outside := range mounts {
		list = append(list, &runtimeapi.Mount{
			ContainerPath: inside, HostPath: outside, Readonly: filepath.Base(inside) != "scratch",
		})
	}
	labels["io.kubernetes.container.name"] = c.Name
	resp, err := d.cri.CreateContainer(d.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId,
		SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(restarts)},
			Image:    &runtimeapi.ImageSpec{Image: d.imageID(c.Image)},
			Command:  c.Command,
			Args:     c.Args,
			Mounts:   list,
			Labels:   labels,
			LogPath:  fmt.Sprintf("%s/%d.log", c.Name, restarts),
			Annotations: map[string]string{
				"io.kubernetes.container.hash":                     strconv.FormatUint(adopt.SpecHash(c), 16),
				"io.kubernetes.container.restartCount":             strconv.Itoa(restarts),
				"io.kubernetes.container.terminationMessagePath":   c.TerminationMessagePath,
				"io.kubernetes.container.terminationMessagePolicy": string(c.TerminationMessagePolicy),
				"io.kubernetes.pod.terminationGracePeriod":         "1",
			},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: namespaces},
			},
		}})
	env.Must(d.t, err)
	_, err = d.cri.StartContainer(d.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: resp.ContainerId})
	env.Must(d.t, err)
	return &made{pod, box.PodSandboxId, resp.ContainerId}
}

// imageID is by what a kubelet names an image to the runtime.
func (d *device) imageID(name string) string {
	resp, err := d.cri.Images.ImageStatus(d.t.Context(), &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: name},
	})
	env.Must(d.t, err)
	return resp.GetImage().GetId()
}

// asJSON is how an object stands in KubeEdge's store.
func (d *device) asJSON(obj any) string {
	text, err := json.Marshal(obj)
	env.Must(d.t, err)
	return string(text)
}
