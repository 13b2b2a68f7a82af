package conformance

import (
	"fmt"
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// generator makes pods at random over the fields that are supported. Every one of them is valid, though not every
// one works: commands fail, probes fail, users may not write, images and objects are missing.
type generator struct {
	*rand.Rand
	RandomOptions
}

// RandomOptions are what the node of a random pod has.
type RandomOptions struct {
	// HostDir is a folder of the node for hostPath volumes.
	HostDir string
	// Driver is the CSI driver of the node, and Device its device plugin's resource; empty if the node has none.
	Driver string
	Device v1.ResourceName
	// Images: the runtime mounts images.
	Images bool
}

// chance is true in one of n cases.
func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// randomObjects are what the volumes and the environment refer to. @NODE@ is the node, @DIR@ a folder on it.
const randomObjects = `apiVersion: v1
kind: ConfigMap
metadata: {name: random}
data: {KEY: value, other: text, 1-name: x}
---
apiVersion: v1
kind: Secret
metadata: {name: random}
stringData: {KEY: hush}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: random.@NODE@}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: random.@NODE@}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 16Mi}
  persistentVolumeReclaimPolicy: Retain
  storageClassName: random.@NODE@
  hostPath: {path: @DIR@}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: random}
spec: {accessModes: [ReadWriteMany], storageClassName: random.@NODE@, resources: {requests: {storage: 16Mi}}}
`

// scripts are what containers do.
var scripts = []string{
	forever, forever, forever,
	"sleep 2",
	"sleep 1; exit 3",
	"trap '' TERM; while true; do sleep 1 & wait $!; done", // has to be killed
	"echo bye >/dev/termination-log; sleep 1; exit 1",
	"httpd -f -p 8080 -h /www",
	"false",
}

// spec makes a pod's spec.
func (g *generator) spec() v1.PodSpec {
	s := v1.PodSpec{
		RestartPolicy: pick(g, v1.RestartPolicyAlways, v1.RestartPolicyAlways,
			v1.RestartPolicyOnFailure, v1.RestartPolicyNever),
		TerminationGracePeriodSeconds: ptr.To(pick[int64](g, 2, 3, 5)),
		DNSPolicy:                     pick(g, v1.DNSDefault, v1.DNSClusterFirst),
		EnableServiceLinks:            ptr.To(g.chance(2)),
		SecurityContext:               g.podSecurity(),
		Volumes:                       g.volumes(),
	}
	if g.chance(5) {
		s.OS = &v1.PodOS{Name: v1.Linux}
	}
	if g.chance(6) {
		s.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}, Searches: []string{"edge.example"},
			Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}}}
	}
	if g.chance(5) {
		s.Resources = &v1.ResourceRequirements{Requests: amounts("50m", "64Mi"), Limits: amounts("2", "512Mi")}
	}
	switch g.IntN(9) {
	case 0:
		s.HostNetwork = true
	case 1:
		s.HostPID = true
	case 2:
		s.HostIPC = true
	case 3:
		s.ShareProcessNamespace = ptr.To(true)
	case 4:
		s.Hostname, s.Subdomain = "host", "sub"
	case 5:
		s.HostAliases = []v1.HostAlias{{IP: "192.0.2.1", Hostnames: []string{"alias"}}}
	case 6:
		s.Hostname, s.Subdomain, s.SetHostnameAsFQDN = "host", "sub", ptr.To(true)
	}
	if g.chance(6) {
		s.ActiveDeadlineSeconds = ptr.To(g.Int64N(6) + 2)
	}
	if g.chance(5) {
		s.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	}
	for i := range g.IntN(3) {
		s.InitContainers = append(s.InitContainers, g.initContainer(fmt.Sprintf("init%d", i), s.Volumes))
	}
	for i := range g.IntN(3) + 1 {
		s.Containers = append(s.Containers, g.container(fmt.Sprintf("main%d", i), pick(g, scripts...), s.Volumes))
	}
	for i := range s.Containers {
		g.ending(&s, &s.Containers[i])
	}
	return s
}

func (g *generator) initContainer(name string, volumes []v1.Volume) v1.Container {
	if g.chance(2) {
		c := g.container(name, forever, volumes)
		c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		return c
	}
	c := g.container(name, pick(g, "true", "true", "sleep 1", "exit 1"), volumes)
	// only what keeps running has them
	c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
	return c
}

func (g *generator) container(name, script string, volumes []v1.Volume) v1.Container {
	c := v1.Container{
		Name:                     name,
		Image:                    "edgecore.local/demo:1",
		Command:                  []string{"sh", "-c", script},
		TerminationMessagePolicy: pick(g, v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError),
		SecurityContext:          g.security(),
		TTY:                      g.chance(6),
		Stdin:                    g.chance(6),
		Env: []v1.EnvVar{
			{Name: "PLAIN", Value: "$(POD)-x"},
			{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{
				Name: "CPU", ValueFrom: &v1.EnvVarSource{
					ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"},
				},
			},
			{
				Name: "SECRET", ValueFrom: &v1.EnvVarSource{
					SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "random"},
						Key: "KEY"},
				},
			},
		},
	}
	if g.chance(3) {
		c.EnvFrom = []v1.EnvFromSource{
			{
				Prefix: "MAP_", ConfigMapRef: &v1.ConfigMapEnvSource{
					LocalObjectReference: v1.LocalObjectReference{Name: "random"},
				},
			},
		}
	}
	if g.chance(2) {
		c.Resources = g.resources()
	}
	if g.chance(3) {
		c.LivenessProbe = g.probe(1)
	}
	if g.chance(3) {
		c.ReadinessProbe = g.probe(pick[int32](g, 1, 2))
	}
	if g.chance(4) {
		c.StartupProbe = g.probe(1)
	}
	if g.chance(3) {
		c.Lifecycle = &v1.Lifecycle{}
		if g.chance(2) {
			c.Lifecycle.PostStart = g.hook()
		}
		if g.chance(2) {
			c.Lifecycle.PreStop = g.hook()
		}
	}
	g.missing(&c)
	for i := range volumes {
		if g.chance(2) {
			c.VolumeMounts = append(c.VolumeMounts, g.mount(&volumes[i]))
		}
	}
	return c
}

// absent is the name of objects that are not there.
const absent = "nowhere"

// AbsentVolume is the volume of a random pod that never starts, since the volume's object is not there.
const AbsentVolume = "absent"

// optional is true more often than not: most containers start.
func (g *generator) optional() *bool { return ptr.To(!g.chance(5)) }

// missing has some containers refer to images, objects and keys that are not there.
func (g *generator) missing(c *v1.Container) {
	switch g.IntN(120) {
	case 0:
		c.Image = "127.0.0.1:1/absent:1" // where nothing answers
	case 1:
		c.Image, c.ImagePullPolicy = "edgecore.local/nowhere:1", v1.PullNever
	case 2:
		c.Image = "Not An Image"
	}
	if g.chance(15) {
		name := v1.LocalObjectReference{Name: pick(g, absent, "random")}
		c.Env = append(c.Env, v1.EnvVar{
			Name: "MISSING", ValueFrom: pick(g,
				&v1.EnvVarSource{
					ConfigMapKeyRef: &v1.ConfigMapKeySelector{
						LocalObjectReference: name, Key: absent, Optional: g.optional(),
					},
				},
				&v1.EnvVarSource{
					SecretKeyRef: &v1.SecretKeySelector{
						LocalObjectReference: name, Key: absent, Optional: g.optional(),
					},
				},
			),
		})
	}
	if g.chance(15) {
		name := v1.LocalObjectReference{Name: absent}
		c.EnvFrom = append(c.EnvFrom, pick(g,
			v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: name, Optional: g.optional()}},
			v1.EnvFromSource{SecretRef: &v1.SecretEnvSource{LocalObjectReference: name, Optional: g.optional()}},
		))
	}
}

// ending says what a container is stopped with, and what follows from its end.
func (g *generator) ending(s *v1.PodSpec, c *v1.Container) {
	if s.OS != nil && g.chance(2) {
		if c.Lifecycle == nil {
			c.Lifecycle = &v1.Lifecycle{}
		}
		c.Lifecycle.StopSignal = ptr.To(pick(g, v1.SIGINT, v1.SIGUSR1))
	}
	if !g.chance(5) {
		return
	}
	c.RestartPolicy = ptr.To(pick(g, v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure,
		v1.ContainerRestartPolicyNever))
	if g.chance(2) {
		c.RestartPolicyRules = []v1.ContainerRestartRule{
			{
				Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
					Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{3},
				},
			},
		}
	}
}

func amounts(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func (g *generator) resources() v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: amounts("1m", "1Mi")}
	if g.chance(2) {
		r.Limits = amounts("200m", "64Mi")
		r.Limits[v1.ResourceEphemeralStorage] = resource.MustParse("64Mi")
	}
	if g.Device != "" && g.chance(3) {
		if r.Limits == nil {
			r.Limits = v1.ResourceList{}
		}
		r.Limits[g.Device] = resource.MustParse("1")
	}
	return r
}

func (g *generator) probe(success int32) *v1.Probe {
	p := &v1.Probe{
		InitialDelaySeconds: g.Int32N(2),
		PeriodSeconds:       1,
		TimeoutSeconds:      g.Int32N(2) + 1,
		SuccessThreshold:    success,
		FailureThreshold:    g.Int32N(3) + 1,
	}
	switch g.IntN(4) {
	case 0:
		p.HTTPGet = &v1.HTTPGetAction{Path: "/index.html", Port: intstr.FromInt32(8080)}
	case 1:
		p.TCPSocket = &v1.TCPSocketAction{Port: intstr.FromInt32(8080)}
	case 2:
		p.Exec = &v1.ExecAction{Command: []string{"sh", "-c", pick(g, "true", "exit 1", "sleep 3")}}
	case 3:
		p.Exec = &v1.ExecAction{Command: []string{"true"}}
	}
	return p
}

func (g *generator) hook() *v1.LifecycleHandler {
	switch g.IntN(4) {
	case 0:
		return &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}}
	case 1:
		return &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}
	case 2:
		return &v1.LifecycleHandler{
			Exec: &v1.ExecAction{Command: []string{"sh", "-c", pick(g, "exit 1", "sleep 5", "echo hook")}},
		}
	}
	return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}
}

func (g *generator) podSecurity() *v1.PodSecurityContext {
	sc := &v1.PodSecurityContext{}
	if g.chance(3) {
		sc.RunAsUser, sc.RunAsGroup = ptr.To[int64](1000), ptr.To[int64](2000)
	}
	if g.chance(3) {
		sc.FSGroup = ptr.To[int64](3000)
	}
	if g.chance(4) {
		sc.SupplementalGroups = []int64{4000, 4001}
	}
	if g.chance(4) {
		sc.SeccompProfile = &v1.SeccompProfile{
			Type: pick(g, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined),
		}
	}
	return sc
}

func (g *generator) security() *v1.SecurityContext {
	switch g.IntN(6) {
	case 0:
		return &v1.SecurityContext{Privileged: ptr.To(true)}
	case 1:
		return &v1.SecurityContext{ReadOnlyRootFilesystem: ptr.To(true)}
	case 2:
		return &v1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}},
		}
	case 3:
		return &v1.SecurityContext{RunAsNonRoot: ptr.To(true)} // fails where the pod names no user
	}
	return nil
}

func (g *generator) volumes() []v1.Volume {
	optional := ptr.To(true)
	all := []v1.VolumeSource{
		{EmptyDir: &v1.EmptyDirVolumeSource{}},
		{
			EmptyDir: &v1.EmptyDirVolumeSource{
				Medium: v1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi")),
			},
		},
		{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "random"},
				Items: []v1.KeyToPath{{Key: "KEY", Path: "a/b"}}},
		},
		{Secret: &v1.SecretVolumeSource{SecretName: "random", DefaultMode: ptr.To[int32](0o400)}},
		{Secret: &v1.SecretVolumeSource{SecretName: absent, Optional: optional}},
		{
			ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: absent}, Optional: optional,
			},
		},
		{
			DownwardAPI: &v1.DownwardAPIVolumeSource{
				Items: []v1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
				},
			},
		},
		{
			Projected: &v1.ProjectedVolumeSource{
				Sources: []v1.VolumeProjection{
					{
						ServiceAccountToken: &v1.ServiceAccountTokenProjection{
							Path: "token", ExpirationSeconds: ptr.To[int64](3600),
						},
					},
					{
						ConfigMap: &v1.ConfigMapProjection{
							LocalObjectReference: v1.LocalObjectReference{Name: "random"},
							Items:                []v1.KeyToPath{{Key: "KEY", Path: "key"}},
						},
					},
					{
						Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: absent},
							Optional: optional},
					},
				},
			},
		},
		{HostPath: &v1.HostPathVolumeSource{Path: g.HostDir, Type: ptr.To(v1.HostPathDirectoryOrCreate)}},
		{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "random"}},
	}
	if g.Driver != "" {
		all = append(all, v1.VolumeSource{
			CSI: &v1.CSIVolumeSource{Driver: g.Driver, VolumeAttributes: map[string]string{"colour": "blue"}},
		})
	}
	if g.Images {
		all = append(all, v1.VolumeSource{
			Image: &v1.ImageVolumeSource{Reference: "edgecore.local/volume:1", PullPolicy: v1.PullIfNotPresent},
		})
	}
	var out []v1.Volume
	for i, source := range all {
		if g.chance(3) {
			out = append(out, v1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: source})
		}
	}
	if g.chance(40) {
		out = append(out, v1.Volume{
			Name: AbsentVolume, VolumeSource: pick(g,
				v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: absent}},
				v1.VolumeSource{
					ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: absent}},
				},
			),
		})
	}
	return out
}

func (g *generator) mount(v *v1.Volume) v1.VolumeMount {
	m := v1.VolumeMount{Name: v.Name, MountPath: "/mnt/" + v.Name, ReadOnly: g.chance(3)}
	if v.EmptyDir != nil || v.HostPath != nil {
		switch g.IntN(4) {
		case 0:
			m.SubPath = "sub/path"
		case 1:
			m.SubPathExpr = "$(POD)"
		}
	}
	return m
}
