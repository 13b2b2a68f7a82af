package edged

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/edged/devices"
	"github.com/edgecore-io/edgecore/edged/dns"
	"github.com/edgecore-io/edgecore/edged/env"
	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/userns"
	"github.com/edgecore-io/edgecore/edged/volume"
)

// inputs answers the runtime's questions about what a sandbox or container needs beyond its spec;
// it brings together dns, cgroups, env and volumes. It implements runtime.Inputs.
type inputs struct {
	dns      func() *dns.Configurer
	userns   *userns.Manager
	cgroups  *cgroups.Manager
	volumes  *volume.Manager
	devices  deviceAnswers
	objects  volume.Objects
	recorder *events.Recorder
	podDir   func(types.UID) string
	facts    func() env.Facts
	services func(ctx context.Context, pod *v1.Pod) []v1.Service
	// ipv6First reports whether pods' own address is the one of IPv6.
	ipv6First func() bool

	mu sync.Mutex
	// mounted holds the volumes of the pods that are set up.
	mounted map[types.UID]volume.Volumes
	// warned holds the pods that were told that there is no cluster DNS.
	warned map[types.UID]bool
}

// deviceAnswers says what a container gets with its devices; *devices.Manager does.
type deviceAnswers interface {
	Container(ctx context.Context, pod *v1.Pod, c *v1.Container) (devices.Answer, error)
}

func (in *inputs) keep(uid types.UID, v volume.Volumes) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mounted == nil {
		in.mounted = map[types.UID]volume.Volumes{}
	}
	in.mounted[uid] = v
}

func (in *inputs) drop(uid types.UID) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.mounted, uid)
	delete(in.warned, uid)
}

// firstWarning tells whether a pod was not warned yet: a device that has no cluster is no news to anybody.
func (in *inputs) firstWarning(uid types.UID) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.warned == nil {
		in.warned = map[types.UID]bool{}
	}
	first := !in.warned[uid]
	in.warned[uid] = true
	return first
}

func (in *inputs) volumesOf(uid types.UID) volume.Volumes {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.mounted[uid]
}

// results remembers the newest sync of each pod: why containers wait.
type results struct {
	mu   sync.Mutex
	last map[types.UID]runtime.SyncResult
}

func (r *results) keep(uid types.UID, res runtime.SyncResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[types.UID]runtime.SyncResult{}
	}
	r.last[uid] = res
}

func (r *results) get(uid types.UID) runtime.SyncResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[uid]
}

func (r *results) drop(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, uid)
}

// Sandbox implements runtime.Inputs.
func (in *inputs) Sandbox(_ context.Context, pod *v1.Pod) (runtime.SandboxInputs, error) {
	hostname, _, err := in.dns().Hostname(pod)
	if err != nil {
		return runtime.SandboxInputs{}, err
	}
	config, warnings, err := in.dns().Resolve(pod, in.facts().HostIPs)
	if err != nil {
		return runtime.SandboxInputs{}, err
	}
	if len(warnings) > 0 && in.firstWarning(pod.UID) {
		for _, w := range warnings {
			in.recorder.Eventf(pod, v1.EventTypeWarning, w.Reason, "%s", w.Message)
		}
	}
	out := runtime.SandboxInputs{Hostname: hostname, DNS: config, CgroupParent: in.cgroups.PodParent(pod), Groups: in.volumes.Groups(pod)}
	if runtime.WantsUserNamespace(pod) {
		if out.UserNamespace, err = in.userns.For(pod.UID); err != nil {
			return runtime.SandboxInputs{}, err
		}
	}
	return out, nil
}

// Container implements runtime.Inputs. Commands and paths see the variables of devices; the values of other variables do not.
func (in *inputs) Container(ctx context.Context, pod *v1.Pod, c *v1.Container, podIPs []string) (runtime.ContainerInputs, error) {
	given, err := in.devices.Container(ctx, pod, c)
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	facts := in.facts()
	facts.PodIPs, facts.Services = status.SortIPs(podIPs, in.ipv6First()), in.services(ctx, pod)
	facts.File = func(name, path string) ([]byte, error) { return fileOf(in.volumesOf(pod.UID), name, path) }
	vars, invalid, err := env.Make(ctx, pod, c, facts, in.objects)
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	if len(invalid) > 0 {
		in.recorder.ContainerEventf(pod, c, v1.EventTypeWarning, events.InvalidEnvironmentVariableNames,
			"Keys [%s] from the EnvFrom of container %s were skipped since they are considered invalid environment variable names.", strings.Join(invalid, ", "), c.Name)
	}
	vars = append(given.Variables(vars), vars...)
	lookup := env.Lookup(vars)
	mounts, err := in.volumes.Mounts(pod, c, in.volumesOf(pod.UID), func(text string) (string, error) { return expandPath(text, lookup) })
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	blocks, err := in.volumes.Devices(c, in.volumesOf(pod.UID))
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	hosts, err := in.dns().EnsureHosts(in.podDir(pod.UID), pod, podIPs)
	if err != nil {
		return runtime.ContainerInputs{}, err
	}
	if !hasMount(c, "/etc/hosts") {
		mounts = append(mounts, &runtimeapi.Mount{HostPath: hosts, ContainerPath: "/etc/hosts"})
	}
	return runtime.ContainerInputs{
		Envs: vars, Mounts: append(given.MountsBeside(mounts), mounts...), Devices: slices.Concat(blocks, given.Devices),
		CDIDevices: given.CDIDevices, Annotations: given.Annotations, WorkingDir: c.WorkingDir, Groups: in.volumes.Groups(pod),
		Command: env.ExpandAll(c.Command, vars), Args: env.ExpandAll(c.Args, vars),
	}, nil
}

// fileOf reads a file of a volume.
func fileOf(volumes volume.Volumes, name, path string) ([]byte, error) {
	place, ok := volumes[name]
	if !ok || place.Block || place.Path == "" {
		return nil, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", name) // unless a container mounts it
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

// expandPath expands a subPathExpr, in which every variable has to have a value: without one, a container would get a folder
// above its own.
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

// fields answers the downward API for volumes.
type fields struct{ e *Edged }

// Field implements volume.Fields.
func (f *fields) Field(pod *v1.Pod, path string) (string, error) {
	return env.Field(pod, path, f.e.facts())
}

// Resource implements volume.Fields.
func (f *fields) Resource(pod *v1.Pod, container string, ref *v1.ResourceFieldSelector) (string, error) {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return env.Resource(pod, &list[i], ref, f.e.opts.Allocatable)
			}
		}
	}
	return "", fmt.Errorf("container %s not found", container)
}

// services returns the services that a pod is told of. A device that knows of none starts its pods without.
func (e *Edged) services(ctx context.Context, pod *v1.Pod) []v1.Service {
	var all []v1.Service
	namespaces := []string{v1.NamespaceDefault}
	if pod.Namespace != v1.NamespaceDefault {
		namespaces = append(namespaces, pod.Namespace)
	}
	for _, ns := range namespaces {
		list, err := e.meta.Services(ctx, ns)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Services not read; the pod starts without their variables", "pod", klog.KObj(pod), "namespace", ns)
		}
		all = append(all, list...)
	}
	return all
}

// tokens asks for the tokens of pods' service accounts. It implements volume.Tokens.
type tokens struct{ meta *metaclient.Client }

// tokenSeconds is how long a token is asked to last where the pod does not say.
const tokenSeconds = 3600

// Token implements volume.Tokens.
func (t *tokens) Token(ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection) (string, error) {
	got, err := t.request(ctx, pod, ask)
	if err != nil {
		return "", err
	}
	return got.Status.Token, nil
}

// request asks for a token, or has the stored one.
func (t *tokens) request(ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection) (*authenticationv1.TokenRequest, error) {
	if source.IsStatic(pod) {
		return nil, fmt.Errorf("a static pod has no service account, and so no token; remove the source from the manifest")
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(ptr.Deref(ask.ExpirationSeconds, tokenSeconds)),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if ask.Audience != "" {
		request.Spec.Audiences = []string{ask.Audience}
	}
	got, err := t.meta.Token(ctx, pod.Namespace, cmp.Or(pod.Spec.ServiceAccountName, "default"), request)
	if err != nil {
		return nil, fmt.Errorf("failed to fetch token: %w", err)
	}
	return got, nil
}
