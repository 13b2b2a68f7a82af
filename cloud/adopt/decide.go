package adopt

import (
	"crypto/x509"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/deploy/cloudcore"
)

// Found is what was read of a cluster.
type Found struct {
	Deployment *appsv1.Deployment
	Service    *v1.Service
	ConfigMap  *v1.ConfigMap
	Namespace  *v1.Namespace
	// ServiceAccount is the one of KubeEdge's cloudcore.
	ServiceAccount *v1.ServiceAccount
	// Secrets by name, of those that KubeEdge's cloudcore makes.
	Secrets map[string]*v1.Secret
	// Left are the objects of KubeEdge's that stay, those that are there.
	Left []Ref
	// FailingWebhooks are the names of KubeEdge's webhooks without which the API server refuses objects.
	FailingWebhooks []string
	// Selecting are the names of other Services that select KubeEdge's pods.
	Selecting []string
	// APIServers are the addresses of kube-apiserver.
	APIServers []string
	// Bindings are the ClusterRoleBindings and RoleBindings.
	Bindings []Binding
	// Roles are KubeEdge's ClusterRole and Role of the name cloudcore, by kind.
	Roles map[string]map[string]any
	// Devices are those that the policy device-tenants would refuse.
	Devices []DeviceNodes
	// Server is the URL of kube-apiserver that was read.
	Server string
	// Minor is Kubernetes' minor version.
	Minor int
	// Now is when it was read.
	Now time.Time
}

// Refusal says why a plan cannot be carried out, and what helps.
type Refusal struct{ Reason, Remedy string }

// Plan is what an adoption does.
type Plan struct {
	// Nothing: the cluster has no cloudcore of KubeEdge's.
	Nothing bool
	// Overlays are the folders of the manifests.
	Overlays []string
	Found    *Found
	Image    string
	Config   *config
	// Addresses and DNSNames are what devices dial.
	Addresses, DNSNames []string
	// Notes are what will not be as it was.
	Notes []string
	// Warnings name what an operator has to know or do.
	Warnings []string
	Refusals []Refusal
	Steps    []Step
}

// Err is ErrRefused or ErrNothing where the plan does nothing.
func (p *Plan) Err() error {
	switch {
	case p.Nothing:
		return ErrNothing
	case len(p.Refusals) > 0:
		return ErrRefused
	}
	return nil
}

func (p *Plan) refuse(remedy, format string, args ...any) {
	p.Refusals = append(p.Refusals, Refusal{Reason: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (p *Plan) addNote(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func (p *Plan) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// Decide makes the plan, without its steps.
func Decide(f *Found, image string) *Plan {
	p := &Plan{Found: f, Image: image}
	if f.Deployment == nil {
		p.Nothing = true
		return p
	}
	if image == "" {
		p.refuse("give --image REGISTRY/cloudcore:TAG; `make image PUSH=REGISTRY/cloudcore:TAG` makes one",
			"no image of edgecore's cloudcore is named")
	}
	p.decideOwner()
	p.decideConfig()
	p.decideAddresses()
	p.decideCA()
	p.decidePod()
	if err := p.decideFields(); err != nil {
		p.refuse("correct it", "deployment/%s: %v", name, err)
	}
	p.decideService()
	p.decideOverlays()
	p.decideWarnings()
	p.decideRights()
	return p
}

// decideOwner refuses what someone else would write again.
func (p *Plan) decideOwner() {
	d := p.Found.Deployment
	for _, owner := range d.OwnerReferences {
		p.refuse("stop that controller, or remove the reference",
			"deployment/%s belongs to %s %s, which would make it again", d.Name, owner.Kind, owner.Name)
	}
	for _, key := range []string{
		"argocd.argoproj.io/instance", "argocd.argoproj.io/tracking-id", "kustomize.toolkit.fluxcd.io/name",
		"helm.toolkit.fluxcd.io/name",
	} {
		if value := d.Labels[key] + d.Annotations[key]; value != "" {
			p.refuse("take KubeEdge out of what it applies without deleting it, and remove "+key+" from the Deployment",
				"deployment/%s is applied from a repository (%s: %s), which would undo each step", d.Name, key, value)
		}
	}
}

func (p *Plan) decideConfig() {
	const fix = "correct it in KubeEdge's ConfigMap, so that it runs with KubeEdge, and try again"
	cm := p.Found.ConfigMap
	if cm == nil || cm.Data[configKey] == "" {
		p.refuse("put KubeEdge's configuration into it", "configmap/%s has no key %s", name, configKey)
		return
	}
	c, err := parseConfig(cm.Data[configKey])
	if err != nil {
		p.refuse(fix, "configmap/%s, %s: %v", name, configKey, err)
		return
	}
	p.Config = c
	hub := &c.Modules.CloudHub
	if !hub.WebSocket.Enable {
		p.refuse("switch the devices and cloudcore to WebSocket first",
			"devices reach KubeEdge's cloudcore over QUIC only, which edgecore's speaks with edgecore's devices only")
	} else if hub.Quic.Enable {
		p.warn("devices of KubeEdge's that connect over QUIC have to be switched to WebSocket: edgecore's cloudcore " +
			"speaks QUIC with edgecore's devices only")
	}
	if c.KubeAPIConfig.KubeConfig != "" {
		p.refuse("leave kubeAPIConfig.kubeConfig empty: cloudcore then uses its ServiceAccount",
			"kubeAPIConfig.kubeConfig names a file of KubeEdge's pod, %s", c.KubeAPIConfig.KubeConfig)
	}
	if p.hostNetwork() {
		for _, at := range c.ports() {
			if at.enabled && at.number < 1024 {
				p.refuse("use ports from 1024 on, in cloudcore and the devices",
					"port %d on the host's network needs root, which edgecore's cloudcore does not have", at.number)
			}
		}
	}
	p.Notes = append(p.Notes, c.lostSettings()...)
}

func (p *Plan) hostNetwork() bool { return p.Found.Deployment.Spec.Template.Spec.HostNetwork }

// decideAddresses takes the addresses of the file or, if it has none, of the certificate that devices see.
func (p *Plan) decideAddresses() {
	if p.Config == nil {
		return
	}
	hub := &p.Config.Modules.CloudHub
	p.Addresses, p.DNSNames = hub.AdvertiseAddress, hub.DNSNames
	if len(p.Addresses)+len(p.DNSNames) > 0 {
		return
	}
	if s := p.Found.Secrets[serverSecret]; s != nil {
		if cert, err := x509.ParseCertificate(s.Data["cloudcoredata"]); err == nil {
			for _, ip := range cert.IPAddresses {
				p.Addresses = append(p.Addresses, ip.String())
			}
			p.DNSNames = append(p.DNSNames, cert.DNSNames...)
		}
	}
	if len(p.Addresses)+len(p.DNSNames) == 0 {
		p.refuse("set modules.cloudHub.advertiseAddress in configmap/cloudcore to the addresses that devices dial",
			"neither configmap/%s nor the certificate in secret/%s names an address", name, serverSecret)
		return
	}
	p.warn("configmap/%s names no address; those of cloudcore's certificate are used", name)
}

// decideCA refuses a cluster whose devices trust another CA than casecret's.
func (p *Plan) decideCA() {
	if s := p.Found.Secrets[caSecret]; s == nil || len(s.Data["cadata"]) == 0 {
		p.refuse("restore it from a backup. If cloudcore never ran here, install edgecore's as docs/cloud.md says",
			"secret/%s, the CA that devices trust, is missing", caSecret)
	} else if err := certificates.CheckCA(s.Data, p.Found.Now); err != nil {
		p.refuse("restore it from a backup: its keys are cadata and cakeydata, both in DER form",
			"secret/%s, the CA that devices trust, cannot be used: %v", caSecret, err)
	}
	if p.Config == nil {
		return
	}
	hub := &p.Config.Modules.CloudHub
	pod := &p.Found.Deployment.Spec.Template.Spec
	for i, file := range []string{hub.TLSCAFile, hub.TLSCAKeyFile, hub.TLSCertFile, hub.TLSPrivateKeyFile} {
		if volume := volumeOf(pod, file); volume != "" {
			p.refuse("put the CA into secret/casecret (keys cadata and cakeydata, DER), and leave the files out",
				"%s of KubeEdge's configuration may be a file, %s of volume %s, which edgecore's pod does not have",
				certificateKeys()[i], file, volume)
		}
	}
}

// volumeOf returns the volume in which a container of a pod may see a file, or "".
func volumeOf(pod *v1.PodSpec, file string) string {
	best, at := "", ""
	for _, c := range pod.Containers {
		for _, m := range c.VolumeMounts {
			if dir := path.Clean(m.MountPath); file == dir || strings.HasPrefix(file, dir+"/") {
				if len(dir) > len(at) {
					best, at = m.Name, dir
				}
			}
		}
	}
	for _, v := range pod.Volumes {
		if v.Name != best || best == "" {
			continue
		}
		var items []v1.KeyToPath
		switch {
		case v.Secret != nil:
			items = v.Secret.Items
		case v.ConfigMap != nil:
			items = v.ConfigMap.Items
		}
		inside := strings.TrimPrefix(strings.TrimPrefix(file, at), "/")
		if len(items) > 0 && !slices.ContainsFunc(items, func(k v1.KeyToPath) bool { return k.Path == inside }) {
			return ""
		}
	}
	return best
}

// decidePod looks for what KubeEdge's pod has and edgecore's cannot have.
func (p *Plan) decidePod() {
	pod := &p.Found.Deployment.Spec.Template.Spec
	for _, c := range pod.Containers {
		for _, at := range c.Ports {
			if at.HostPort != 0 && !p.hostNetwork() {
				p.refuse("use the host's network or a Service of type NodePort with KubeEdge's cloudcore first",
					"container %s uses host port %d without the host's network", c.Name, at.HostPort)
			}
		}
		if c.Name != name {
			p.addNote("container %s of the Deployment is left out", c.Name)
			continue
		}
		for _, e := range c.Env {
			p.addNote("environment variable %s of the Deployment is left out", e.Name)
		}
		if len(c.Args) > 0 {
			p.addNote("arguments %q of the Deployment are left out", c.Args)
		}
	}
	ns := p.Found.Namespace
	if ns == nil || !p.hostNetwork() {
		return
	}
	const enforce = "pod-security.kubernetes.io/enforce"
	if level := ns.Labels[enforce]; level == "restricted" || level == "baseline" {
		p.refuse(fmt.Sprintf("kubectl label namespace %s %s-", Namespace, enforce),
			"the namespace has %s: %s, under which no pod may use the host's network", enforce, level)
	}
}

// decideOverlays chooses the manifests by how devices reach KubeEdge's cloudcore.
func (p *Plan) decideOverlays() {
	kind := v1.ServiceTypeClusterIP
	if p.Found.Service != nil {
		kind = p.Found.Service.Spec.Type
	}
	overlay := "base"
	switch {
	case p.hostNetwork():
		overlay = cloudcore.HostNetwork
	case kind == v1.ServiceTypeNodePort:
		overlay = cloudcore.NodePort
	case kind == v1.ServiceTypeLoadBalancer:
		overlay = cloudcore.LoadBalancer
	case len(p.Found.Selecting) == 0:
		p.warn("no NodePort, load balancer or host network leads to cloudcore: devices need another way, such as " +
			"a proxy")
	}
	p.Overlays = []string{cloudcore.Setup, overlay}
	if p.Found.Minor < 36 {
		p.Overlays = append(p.Overlays, cloudcore.Before136)
	}
}

func (p *Plan) decideWarnings() {
	f := p.Found
	if release := f.Deployment.Annotations["meta.helm.sh/release-name"]; release != "" {
		p.warn("Helm's release %s still has these objects: `helm upgrade`, `helm rollback` and `helm uninstall` would "+
			"overwrite or delete edgecore's. When you will not go back, make Helm forget it: "+
			"kubectl -n %s delete secret -l owner=helm,name=%s", release, Namespace, release)
	}
	if app := f.Deployment.Labels[instanceLabel]; app != "" &&
		f.Deployment.Annotations["meta.helm.sh/release-name"] == "" {
		p.warn("deployment/%s has the label %s: %s without Helm's annotations. Argo CD tracks what it applies by this "+
			"label: if it does, take KubeEdge out of what it applies without deleting it, or it undoes each step", name,
			instanceLabel, app)
	}
	admission := slices.Contains(f.Left, deployment("kubeedge-admission"))
	if len(f.FailingWebhooks) > 0 && !admission {
		p.warn("kube-apiserver refuses what webhooks of KubeEdge check while their Deployment kubeedge-admission is "+
			"missing (failurePolicy Fail): %s", strings.Join(f.FailingWebhooks, ", "))
	} else if len(f.FailingWebhooks) > 0 {
		p.warn("to remove KubeEdge's admission, delete the configurations of its webhooks before its Deployment: "+
			"without it, kube-apiserver refuses what these check (failurePolicy Fail): %s",
			strings.Join(f.FailingWebhooks, ", "))
	}
	if len(f.Selecting) > 0 {
		p.addNote("pods of edgecore's cloudcore also get the labels of KubeEdge's, because other Services select "+
			"them: %s", strings.Join(f.Selecting, ", "))
	}
}

// Verbs of steps.
const (
	create   = "create"
	replace  = "replace"
	recreate = "delete and create"
	skip     = "leave out"
)

// Step is what happens to an object of edgecore's manifests.
type Step struct {
	Ref
	Verb string
	// Object is what is written.
	Object *unstructured.Unstructured
	// Original is what was there; nil if there was nothing.
	Original *unstructured.Unstructured
	// Rewrite says to write it even if it has the mark of what is written: others may have merged something into it.
	Rewrite bool
}

// add adds the step for an object of the manifests. known reports whether the API server knows its kind.
func (p *Plan) add(o, original *unstructured.Unstructured, known bool) {
	s := Step{Ref: refOf(o), Verb: create, Object: o, Original: original}
	switch {
	case s.Kind == "Namespace":
		return // others live there, and its labels are theirs
	case !known:
		s.Verb = skip
	case original == nil:
	case s.Kind == "Deployment":
		s.Verb = recreate // its selector cannot be changed
	default:
		s.Verb = replace
	}
	p.Steps = append(p.Steps, s)
}

// selects reports whether a Service selects pods with these labels.
func selects(s *v1.Service, labels map[string]string) bool {
	if len(s.Spec.Selector) == 0 {
		return false
	}
	for key, value := range s.Spec.Selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}
