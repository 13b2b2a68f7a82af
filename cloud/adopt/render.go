package adopt

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// render returns the objects of edgecore's manifests as a plan wants them, in the order in which they are written.
func render(manifests fs.FS, p *Plan) ([]*unstructured.Unstructured, error) {
	objects, err := build(manifests, p.Overlays)
	if err != nil {
		return nil, err
	}
	for i, o := range objects {
		if objects[i], err = p.customize(o); err != nil {
			return nil, fmt.Errorf("%s: %w", refOf(o), err)
		}
		if err := mark(objects[i]); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return rank(a.GetKind()) - rank(b.GetKind())
	})
	return objects, nil
}

// build does what `kubectl kustomize` does, for several folders.
func build(manifests fs.FS, folders []string) ([]*unstructured.Unstructured, error) {
	const root = "/cloudcore"
	files := filesys.MakeFsInMemory()
	err := fs.WalkDir(manifests, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(file) != ".yaml" {
			return err
		}
		data, err := fs.ReadFile(manifests, file)
		if err != nil {
			return err
		}
		return files.WriteFile(path.Join(root, file), data)
	})
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, folder := range folders {
		built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, path.Join(root, folder))
		if err != nil {
			return nil, err
		}
		for _, r := range built.Resources() {
			data, err := r.MarshalJSON()
			if err != nil {
				return nil, err
			}
			o := &unstructured.Unstructured{}
			if err := o.UnmarshalJSON(data); err != nil {
				return nil, err
			}
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// rank puts the Deployment after all that its pods need.
func rank(kind string) int {
	if kind == "Deployment" {
		return 1
	}
	return 0
}

// mark gives an object the annotation that says that it was written by an adoption, and what was written.
func mark(o *unstructured.Unstructured) error {
	data, err := json.Marshal(o.Object)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[adoptedAnnotation] = hex.EncodeToString(sum[:16])
	o.SetAnnotations(annotations)
	return nil
}

// customize gives an object the values of KubeEdge's.
func (p *Plan) customize(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if p.Config == nil || o.GetName() != name {
		return o, nil
	}
	switch o.GetKind() {
	case "ConfigMap":
		text, _, err := unstructured.NestedString(o.Object, "data", configKey)
		if err != nil {
			return nil, err
		}
		if text, err = p.Config.merge(text, p.Addresses, p.DNSNames); err != nil {
			return nil, err
		}
		return o, unstructured.SetNestedField(o.Object, text, "data", configKey)
	case "Deployment":
		return typed(o, p.customizeDeployment)
	case "Service":
		return typed(o, p.customizeService)
	case "NetworkPolicy":
		return o, p.customizePolicy(o)
	}
	return o, nil
}

// typed changes an object by way of its Go type.
func typed[T any](o *unstructured.Unstructured, change func(*T)) (*unstructured.Unstructured, error) {
	object := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, object, true); err != nil {
		return nil, err
	}
	change(object)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	return withoutServerFields(&unstructured.Unstructured{Object: content}), nil
}

func (p *Plan) customizeDeployment(d *appsv1.Deployment) {
	theirs := p.Found.Deployment
	if theirs.Spec.Replicas != nil && *theirs.Spec.Replicas > 0 {
		d.Spec.Replicas = theirs.Spec.Replicas
	}
	from, to := &theirs.Spec.Template.Spec, &d.Spec.Template.Spec
	for i := range to.Containers {
		c := &to.Containers[i]
		c.Image = p.Image
		for j := range c.Ports {
			for _, at := range p.Config.ports() {
				if c.Ports[j].Name == at.name {
					c.Ports[j].ContainerPort = at.number
				}
			}
		}
	}
	to.ImagePullSecrets = append(to.ImagePullSecrets, from.ImagePullSecrets...)
	to.NodeSelector, to.Tolerations = from.NodeSelector, from.Tolerations
	to.NodeName, to.PriorityClassName = from.NodeName, from.PriorityClassName
	if from.Affinity != nil && from.Affinity.NodeAffinity != nil &&
		!reflect.DeepEqual(from.Affinity.NodeAffinity, to.Affinity.NodeAffinity) {
		to.Affinity.NodeAffinity = from.Affinity.NodeAffinity
	}
	if len(p.Found.Selecting) > 0 {
		for key, value := range theirs.Spec.Template.Labels {
			if _, ok := d.Spec.Template.Labels[key]; !ok {
				d.Spec.Template.Labels[key] = value
			}
		}
	}
}

// customizePolicy lets kube-apiserver reach the ports of the devices.
func (p *Plan) customizePolicy(o *unstructured.Unstructured) error {
	rules, _, err := unstructured.NestedSlice(o.Object, "spec", "ingress")
	if err != nil {
		return err
	}
	for _, entry := range rules {
		rule, _ := entry.(map[string]any)
		from, _ := rule["from"].([]any)
		if len(from) == 0 || !slices.ContainsFunc(anys(rule["ports"]), func(port any) bool {
			m, _ := port.(map[string]any)
			return m["endPort"] != nil
		}) {
			continue
		}
		for _, address := range p.Found.APIServers {
			ip, err := netip.ParseAddr(address)
			if err != nil {
				continue
			}
			cidr := netip.PrefixFrom(ip, ip.BitLen()).String()
			from = append(from, map[string]any{"ipBlock": map[string]any{"cidr": cidr}})
		}
		rule["from"] = from
	}
	return unstructured.SetNestedSlice(o.Object, rules, "spec", "ingress")
}

func anys(v any) []any {
	list, _ := v.([]any)
	return list
}
