// Package podinputs answers what the runtime asks about a sandbox or a container beyond its spec: DNS and host names,
// variables, mounts, devices and cgroups.
package podinputs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/dns"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/containers/userns"
	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage/devices"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// Devices says what a container gets with its devices; see package devices.
type Devices interface {
	Container(ctx context.Context, pod *v1.Pod, c *v1.Container) (devices.Answer, error)
}

// Options are what Inputs needs.
type Options struct {
	// DNS returns the current DNS configuration.
	DNS     func() *dns.Configurer
	UserNS  *userns.Manager
	Cgroups *cgroups.Manager
	Volumes *volume.Manager
	Devices Devices
	// Objects returns the configmaps and secrets that variables refer to.
	Objects  volume.Objects
	Recorder *events.Recorder
	// PodDir returns the folder of a pod.
	PodDir func(types.UID) string
	Facts  func() env.Facts
	// Services returns the services whose variables a pod gets.
	Services func(ctx context.Context, pod *v1.Pod) []v1.Service
	// Started is called with the addresses of a pod before a container of it starts.
	Started func(uid types.UID, podIPs []string)
	// IPv6First reports whether the first address of a pod is the one of IPv6.
	IPv6First func() bool
}

// Inputs implements runtime.Inputs. Its methods may be called from any goroutine.
type Inputs struct {
	opts Options

	mu sync.Mutex
	// volumes are those of the pods that are set up.
	volumes map[types.UID]volume.Volumes
	// warned are the pods that already have an event about the missing cluster DNS.
	warned map[types.UID]bool
}

// New returns Inputs that know no volumes.
func New(o Options) *Inputs {
	return &Inputs{opts: o, volumes: map[types.UID]volume.Volumes{}, warned: map[types.UID]bool{}}
}

// SetVolumes records the volumes that were set up for a pod.
func (in *Inputs) SetVolumes(uid types.UID, v volume.Volumes) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.volumes[uid] = v
}

// Forget drops what is known of a pod.
func (in *Inputs) Forget(uid types.UID) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.volumes, uid)
	delete(in.warned, uid)
}

// firstWarning reports whether a pod was not warned before: one event is enough on a device without a cluster.
func (in *Inputs) firstWarning(uid types.UID) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	first := !in.warned[uid]
	in.warned[uid] = true
	return first
}

func (in *Inputs) volumesOf(uid types.UID) volume.Volumes {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.volumes[uid]
}

// Sandbox implements runtime.Inputs.
func (in *Inputs) Sandbox(_ context.Context, pod *v1.Pod) (runtime.SandboxInputs, error) {
	hostname, _, err := in.opts.DNS().Hostname(pod)
	if err != nil {
		return runtime.SandboxInputs{}, err
	}
	config, warnings, err := in.opts.DNS().Resolve(pod, in.opts.Facts().HostIPs)
	if err != nil {
		return runtime.SandboxInputs{}, err
	}
	if len(warnings) > 0 && in.firstWarning(pod.UID) {
		for _, w := range warnings {
			in.opts.Recorder.Eventf(pod, v1.EventTypeWarning, w.Reason, "%s", w.Message)
		}
	}
	out := runtime.SandboxInputs{
		Hostname:     hostname,
		DNS:          config,
		CgroupParent: in.opts.Cgroups.PodParent(pod),
		Groups:       in.opts.Volumes.Groups(pod),
	}
	if runtime.WantsUserNamespace(pod) {
		if out.UserNamespace, err = in.opts.UserNS.For(pod.UID); err != nil {
			return runtime.SandboxInputs{}, err
		}
	}
	return out, nil
}

// Container implements runtime.Inputs. Commands and paths see the variables of devices; the values of other variables
// do not.
func (in *Inputs) Container(
	ctx context.Context, pod *v1.Pod, c *v1.Container, podIPs []string,
) (runtime.ContainerInputs, error) {
	given, err := in.opts.Devices.Container(ctx, pod, c)
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	in.opts.Started(pod.UID, podIPs)
	facts := in.opts.Facts()
	facts.PodIPs, facts.Services = status.SortIPs(podIPs, in.opts.IPv6First()), in.opts.Services(ctx, pod)
	facts.File = func(name, path string) ([]byte, error) { return fileOf(in.volumesOf(pod.UID), name, path) }
	vars, invalid, err := env.Make(ctx, pod, c, facts, in.opts.Objects)
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	if len(invalid) > 0 {
		in.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, events.InvalidEnvironmentVariableNames,
			"Keys [%s] from the EnvFrom of container %s were skipped since they are considered "+
				"invalid environment variable names.", strings.Join(invalid, ", "), c.Name)
	}
	vars = append(given.Variables(vars), vars...)
	lookup := env.Lookup(vars)
	expand := func(text string) (string, error) { return expandPath(text, lookup) }
	mounts, err := in.opts.Volumes.Mounts(pod, c, in.volumesOf(pod.UID), expand)
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	blocks, err := in.opts.Volumes.Devices(c, in.volumesOf(pod.UID))
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	hosts, err := in.opts.DNS().EnsureHosts(in.opts.PodDir(pod.UID), pod, podIPs)
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	if !hasMount(c, "/etc/hosts") {
		mounts = append(mounts, &runtimeapi.Mount{HostPath: hosts, ContainerPath: "/etc/hosts"})
	}
	return runtime.ContainerInputs{
		Envs:        vars,
		Mounts:      append(given.MountsBeside(mounts), mounts...),
		Devices:     slices.Concat(blocks, given.Devices),
		CDIDevices:  given.CDIDevices,
		Annotations: given.Annotations,
		WorkingDir:  c.WorkingDir,
		Groups:      in.opts.Volumes.Groups(pod),
		Command:     env.ExpandAll(c.Command, vars),
		Args:        env.ExpandAll(c.Args, vars),
	}, nil
}

// fileOf reads a file of a volume.
func fileOf(volumes volume.Volumes, name, path string) ([]byte, error) {
	place, ok := volumes[name]
	if !ok || place.Block || place.Path == "" {
		// unless a container mounts it
		return nil, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", name)
	}
	return env.ReadFile(place.Path, path)
}

func hasMount(c *v1.Container, path string) bool {
	for _, m := range c.VolumeMounts {
		if m.MountPath == path {
			return true
		}
	}
	return false
}

// expandPath expands a subPathExpr. Every variable must have a value: otherwise a container would get a folder above
// its own.
func expandPath(text string, lookup func(string) (string, bool)) (string, error) {
	var missing []string
	out := env.Expand(text, func(name string) (string, bool) {
		value, ok := lookup(name)
		if value == "" && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
		return value, ok
	})
	if len(missing) > 0 {
		slices.Sort(missing)
		return "", fmt.Errorf("missing value for %s", strings.Join(missing, ", "))
	}
	return out, nil
}
