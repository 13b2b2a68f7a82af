package source

import (
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Validate checks a defaulted pod for what the API server would refuse and a node cannot run. It
// reports every fault with its field path. It does not judge what only this node cannot do:
// that is the pod's status to say.
func Validate(pod *v1.Pod) error {
	v := &validator{}
	meta := field.NewPath("metadata")
	v.collect(meta.Child("name"), pod.Name, validation.IsDNS1123Subdomain(pod.Name))
	v.collect(meta.Child("namespace"), pod.Namespace, validation.IsDNS1123Label(pod.Namespace))
	for k, value := range pod.Labels {
		v.collect(meta.Child("labels"), k, validation.IsQualifiedName(k))
		v.collect(meta.Child("labels").Key(k), value, validation.IsValidLabelValue(value))
	}
	if bad := strings.ContainsAny(string(pod.UID), "/\\ \x00") || strings.Contains(string(pod.UID), ".."); bad ||
		len(pod.UID) > 128 {
		v.add(field.Invalid(meta.Child("uid"), pod.UID, "a UID names folders: letters, digits, '-' and '_' only"))
	}
	v.spec(field.NewPath("spec"), &pod.Spec)
	// Maps have no order; the same faults should read the same each time.
	smallsort.SortStableFunc(v.errs, func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
	return v.errs.ToAggregate()
}

type validator struct{ errs field.ErrorList }

// maxFaults is how many faults of a pod are reported. They become one text, which takes time with the square of their
// number.
const maxFaults = 100

func (v *validator) add(errs ...*field.Error) {
	v.errs = append(v.errs, errs[:min(len(errs), maxFaults-len(v.errs))]...)
}

func (v *validator) collect(p *field.Path, value any, faults []string) {
	for _, f := range faults {
		v.add(field.Invalid(p, value, f))
	}
}

func oneOf[T ~string](v *validator, p *field.Path, value T, allowed ...T) {
	if !slices.Contains(allowed, value) {
		v.add(field.NotSupported(p, value, allowed))
	}
}

func (v *validator) spec(p *field.Path, spec *v1.PodSpec) {
	oneOf(v, p.Child("restartPolicy"), spec.RestartPolicy, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure,
		v1.RestartPolicyNever)
	oneOf(v, p.Child("dnsPolicy"), spec.DNSPolicy, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSDefault,
		v1.DNSNone)
	if g := spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		v.add(field.Invalid(p.Child("terminationGracePeriodSeconds"), *g, "must not be negative"))
	}
	if h := spec.Hostname; h != "" {
		v.collect(p.Child("hostname"), h, validation.IsDNS1123Label(h))
	}
	v.podSecurity(p, spec)
	v.podDeadline(p, spec)
	volumes := v.volumes(p.Child("volumes"), spec.Volumes)
	if len(spec.Containers) == 0 {
		v.add(field.Required(p.Child("containers"), "a pod needs a container"))
	}
	names := sets.New[string]()
	ports := sets.New[string]()
	for i := range spec.InitContainers {
		v.container(p.Child("initContainers").Index(i), &spec.InitContainers[i], names, volumes, sets.New[string]())
		v.lifecycle(p.Child("initContainers").Index(i), &spec.InitContainers[i], spec, true)
	}
	for i := range spec.Containers {
		v.container(p.Child("containers").Index(i), &spec.Containers[i], names, volumes, ports)
		v.lifecycle(p.Child("containers").Index(i), &spec.Containers[i], spec, false)
	}
	for i, a := range spec.HostAliases {
		v.add(validation.IsValidIPForLegacyField(p.Child("hostAliases").Index(i).Child("ip"), a.IP, false, nil)...)
	}
}

func (v *validator) volumes(p *field.Path, volumes []v1.Volume) sets.Set[string] {
	names := sets.New[string]()
	for i := range volumes {
		vol, at := &volumes[i], p.Index(i)
		v.collect(at.Child("name"), vol.Name, validation.IsDNS1123Label(vol.Name))
		if names.Has(vol.Name) {
			v.add(field.Duplicate(at.Child("name"), vol.Name))
		}
		names.Insert(vol.Name)
		if hp := vol.HostPath; hp != nil {
			if hp.Path == "" {
				v.add(field.Required(at.Child("hostPath", "path"), ""))
			} else if slices.Contains(strings.Split(hp.Path, "/"), "..") {
				v.add(field.Invalid(at.Child("hostPath", "path"), hp.Path, "must not contain '..'"))
			}
		}
		v.image(at.Child("image"), vol.Image)
		if vol.ConfigMap != nil && vol.ConfigMap.Name == "" {
			v.add(field.Required(at.Child("configMap", "name"), ""))
		}
		if vol.Secret != nil && vol.Secret.SecretName == "" {
			v.add(field.Required(at.Child("secret", "secretName"), ""))
		}
	}
	return names
}

func (v *validator) container(p *field.Path, c *v1.Container, names, volumes, ports sets.Set[string]) {
	v.collect(p.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))
	if names.Has(c.Name) {
		v.add(field.Duplicate(p.Child("name"), c.Name))
	}
	names.Insert(c.Name)
	if c.Image == "" {
		v.add(field.Required(p.Child("image"), ""))
	} else if strings.TrimSpace(c.Image) != c.Image {
		v.add(field.Invalid(p.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	oneOf(v, p.Child("imagePullPolicy"), c.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)
	oneOf(v, p.Child("terminationMessagePolicy"), c.TerminationMessagePolicy, v1.TerminationMessageReadFile,
		v1.TerminationMessageFallbackToLogsOnError)
	v.ports(p.Child("ports"), c.Ports, ports)
	v.env(p.Child("env"), c.Env)
	v.mounts(p.Child("volumeMounts"), c.VolumeMounts, volumes)
	v.resources(p.Child("resources"), &c.Resources)
	v.probes(p, c)
	v.containerSecurity(p.Child("securityContext"), c)
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			v.envFile(p.Child("env").Index(i).Child("valueFrom", "fileKeyRef"), from.FileKeyRef)
		}
	}
}

func (v *validator) ports(p *field.Path, ports []v1.ContainerPort, hostPorts sets.Set[string]) {
	for i, port := range ports {
		at := p.Index(i)
		v.collect(at.Child("containerPort"), port.ContainerPort, validation.IsValidPortNum(int(port.ContainerPort)))
		oneOf(v, at.Child("protocol"), port.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)
		if port.Name != "" {
			v.collect(at.Child("name"), port.Name, validation.IsValidPortName(port.Name))
		}
		if port.HostPort == 0 {
			continue
		}
		v.collect(at.Child("hostPort"), port.HostPort, validation.IsValidPortNum(int(port.HostPort)))
		key := HostPortKey(port)
		if hostPorts.Has(key) {
			v.add(field.Duplicate(at.Child("hostPort"), key))
		}
		hostPorts.Insert(key)
	}
}

func (v *validator) env(p *field.Path, env []v1.EnvVar) {
	for i, e := range env {
		v.collect(p.Index(i).Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))
		if e.Value != "" && e.ValueFrom != nil {
			v.add(field.Invalid(p.Index(i).Child("valueFrom"), e.Name, "may not be set beside value"))
		}
	}
}

func (v *validator) mounts(p *field.Path, mounts []v1.VolumeMount, volumes sets.Set[string]) {
	paths := sets.New[string]()
	for i, m := range mounts {
		at := p.Index(i)
		if !volumes.Has(m.Name) {
			v.add(field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			v.add(field.Required(at.Child("mountPath"), ""))
		}
		if paths.Has(m.MountPath) {
			v.add(field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths.Insert(m.MountPath)
		for name, sub := range map[string]string{"subPath": m.SubPath, "subPathExpr": m.SubPathExpr} {
			if path.IsAbs(sub) || slices.Contains(strings.Split(sub, "/"), "..") {
				v.add(field.Invalid(at.Child(name), sub, "must be a relative path without '..'"))
			}
		}
		if m.SubPath != "" && m.SubPathExpr != "" {
			v.add(field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "may not be set beside subPath"))
		}
	}
}

func (v *validator) resources(p *field.Path, r *v1.ResourceRequirements) {
	check := func(kind string, list v1.ResourceList) {
		for name, q := range list {
			if q.Sign() < 0 {
				v.add(field.Invalid(p.Child(kind).Key(string(name)), q.String(), "must not be negative"))
			}
		}
	}
	check("limits", r.Limits)
	check("requests", r.Requests)
	for name, request := range r.Requests {
		if limit, ok := r.Limits[name]; ok && less(limit, request) {
			v.add(field.Invalid(p.Child("requests").Key(string(name)), request.String(),
				"must not be above the limit of "+limit.String()))
		}
	}
}

func less(a, b resource.Quantity) bool { return a.Cmp(b) < 0 }

// HostPortKey names a port of the node: "<protocol> <address>:<port>".
func HostPortKey(p v1.ContainerPort) string {
	ip := p.HostIP
	if ip == "" {
		ip = "0.0.0.0"
	}
	return string(p.Protocol) + " " + ip + ":" + strconv.Itoa(int(p.HostPort))
}
