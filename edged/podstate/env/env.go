// Package env makes the environment of a container: literal values with $(VAR) references, keys of
// configMaps and secrets, whole configMaps and secrets, fields of the pod, resources. The rules are those
// documented with "Define Environment Variables for a Container" and the downward API.
//
// envFrom comes first, then env; a later entry replaces an earlier one in its place, and a reference sees
// what stands before it. The variables of services give way to all of these, and a reference sees them, too.
package env

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Objects gives configMaps and secrets. apierrors.IsNotFound tells a missing one.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Facts are what a pod may ask for that is not in its spec.
type Facts struct {
	PodIPs  []string
	HostIPs []string
	// NodeName stands in for a pod that names no node.
	NodeName string
	// Allocatable stands in for limits that a container does not have.
	Allocatable v1.ResourceList
	// Services are those of the pod's namespace, and the API's.
	Services []v1.Service
	// File reads a file of a volume of the pod; os.ErrNotExist means that it is missing. nil without volumes.
	File func(volume, path string) ([]byte, error)
}

// Make returns the environment of a container in the order of its spec, and the names that were left out because they
// are not valid variable names. Since Kubernetes 1.34 those are names with "=" or with characters that are not
// printable ASCII. An error is in the kubelet's words.
func Make(
	ctx context.Context, pod *v1.Pod, c *v1.Container, facts Facts, objects Objects,
) (vars []*runtimeapi.KeyValue, invalid []string, err error) {
	objects = &once{Objects: objects, configMaps: map[string]*v1.ConfigMap{}, secrets: map[string]*v1.Secret{}}
	services := serviceVars(pod, facts.Services)
	e := &environ{values: map[string]string{}, services: map[string]string{}}
	for _, v := range services {
		e.services[v.name] = v.value
	}
	for i := range c.EnvFrom {
		if e.size > maxTotal {
			break // check returns the error
		}
		if err := e.addAll(ctx, pod.Namespace, &c.EnvFrom[i], objects); err != nil {
			return nil, nil, err
		}
	}
	for i := range c.Env {
		if e.size > maxTotal {
			break
		}
		v := &c.Env[i]
		value, ok, err := e.value(ctx, pod, c, v, facts, objects)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			e.set(v.Name, value)
		}
	}
	for _, v := range services {
		if _, taken := e.values[v.name]; !taken {
			e.set(v.name, v.value)
		}
	}
	if err := e.check(); err != nil {
		return nil, nil, fmt.Errorf("container %s: %w", c.Name, err)
	}
	for _, name := range e.order {
		vars = append(vars, &runtimeapi.KeyValue{Key: name, Value: []byte(e.values[name])})
	}
	return vars, e.invalid, nil
}

// once gets each object of one namespace once, however often a container refers to it.
type once struct {
	Objects
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
}

func (o *once) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	if cm, ok := o.configMaps[name]; ok {
		return cm, nil
	}
	cm, err := o.Objects.ConfigMap(ctx, namespace, name)
	if err == nil {
		o.configMaps[name] = cm
	}
	return cm, err
}

func (o *once) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	if secret, ok := o.secrets[name]; ok {
		return secret, nil
	}
	secret, err := o.Objects.Secret(ctx, namespace, name)
	if err == nil {
		o.secrets[name] = secret
	}
	return secret, err
}

// maxInvalid is about how many bytes of invalid names Make returns; an event has room for 1 KiB.
const maxInvalid = 4 << 10

// environ is an environment under construction.
type environ struct {
	order  []string
	values map[string]string
	// size is that of all names and values, including values that a later entry replaced: thousands of large values for
	// one name cost as much as those for many names.
	size int
	// invalid are the first of the names that were left out, invalidSize is their size.
	invalid     []string
	invalidSize int
	// services are there to refer to, and are added last.
	services map[string]string
}

func (e *environ) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.order = append(e.order, name)
	}
	e.size += len(name) + len("=\x00") + len(value)
	e.values[name] = value
}

// check refuses what no program could be started with, while it still can be told which variable it is.
func (e *environ) check() error {
	for _, name := range e.order {
		if size := len(name) + len("=\x00") + len(e.values[name]); size > maxString() {
			return fmt.Errorf("environment variable %s has %d bytes, the kernel takes %d; mount the value as a file "+
				"instead", name, size, maxString())
		}
	}
	if e.size > maxTotal {
		return fmt.Errorf("the environment has more than the %d bytes that the kernel takes; mount large values as "+
			"files instead", maxTotal)
	}
	return nil
}

// addAll adds every key of a configMap or secret.
func (e *environ) addAll(ctx context.Context, namespace string, from *v1.EnvFromSource, objects Objects) error {
	var keys []string
	var valueOf func(key string) string
	var optional *bool
	var err error
	var kind, object string
	switch {
	case from.ConfigMapRef != nil:
		optional, kind, object = from.ConfigMapRef.Optional, "configmap", from.ConfigMapRef.Name
		var cm *v1.ConfigMap
		if cm, err = objects.ConfigMap(ctx, namespace, from.ConfigMapRef.Name); err == nil {
			keys = slices.Sorted(maps.Keys(cm.Data))
			valueOf = func(key string) string { return cm.Data[key] }
		}
	case from.SecretRef != nil:
		optional, kind, object = from.SecretRef.Optional, "secret", from.SecretRef.Name
		var secret *v1.Secret
		if secret, err = objects.Secret(ctx, namespace, from.SecretRef.Name); err == nil {
			keys = slices.Sorted(maps.Keys(secret.Data))
			valueOf = func(key string) string { return string(secret.Data[key]) }
		}
	}
	if err != nil {
		if apierrors.IsNotFound(err) && optional != nil && *optional {
			return nil
		}
		return notFound(err, kind, object)
	}
	for _, key := range keys {
		if e.size > maxTotal {
			break
		}
		name := from.Prefix + key
		if len(name) > maxString() || len(validation.IsRelaxedEnvVarName(name)) > 0 {
			e.leaveOut(name)
			continue
		}
		e.set(name, valueOf(key))
	}
	return nil
}

// leaveOut notes a name that is not one of a variable.
func (e *environ) leaveOut(name string) {
	if e.invalidSize < maxInvalid {
		name = name[:min(len(name), maxInvalid)]
		e.invalid = append(e.invalid, name)
		e.invalidSize += len(name)
	}
}

// value works out one variable; ok is false for an optional one that is not there.
func (e *environ) value(
	ctx context.Context, pod *v1.Pod, c *v1.Container, v *v1.EnvVar, facts Facts, objects Objects,
) (value string, ok bool, err error) {
	from := v.ValueFrom
	switch {
	case from == nil:
		return Expand(v.Value, e.lookup), true, nil
	case from.FieldRef != nil:
		value, err = Field(pod, from.FieldRef.FieldPath, facts)
		return value, true, err
	case from.ResourceFieldRef != nil:
		target := c
		if name := from.ResourceFieldRef.ContainerName; name != "" && name != c.Name {
			if target = find(pod, name); target == nil {
				return "", false, fmt.Errorf("container %s not found", name)
			}
		}
		value, err = Resource(pod, target, from.ResourceFieldRef, facts.Allocatable)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		return configMapKey(ctx, pod.Namespace, from.ConfigMapKeyRef, objects)
	case from.SecretKeyRef != nil:
		return secretKey(ctx, pod.Namespace, from.SecretKeyRef, objects)
	case from.FileKeyRef != nil:
		return fileKey(from.FileKeyRef, facts.File)
	}
	return "", true, nil
}

func (e *environ) lookup(name string) (string, bool) {
	if value, ok := e.values[name]; ok {
		return value, true
	}
	value, ok := e.services[name]
	return value, ok
}

func configMapKey(
	ctx context.Context, namespace string, ref *v1.ConfigMapKeySelector, objects Objects,
) (string, bool, error) {
	optional := ref.Optional != nil && *ref.Optional
	cm, err := objects.ConfigMap(ctx, namespace, ref.Name)
	if err != nil {
		if optional && apierrors.IsNotFound(err) {
			return "", false, nil
		}
		return "", false, notFound(err, "configmap", ref.Name)
	}
	value, ok := cm.Data[ref.Key]
	if !ok && !optional {
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, namespace, ref.Name)
	}
	return value, ok, nil
}

func secretKey(
	ctx context.Context, namespace string, ref *v1.SecretKeySelector, objects Objects,
) (string, bool, error) {
	optional := ref.Optional != nil && *ref.Optional
	secret, err := objects.Secret(ctx, namespace, ref.Name)
	if err != nil {
		if optional && apierrors.IsNotFound(err) {
			return "", false, nil
		}
		return "", false, notFound(err, "secret", ref.Name)
	}
	value, ok := secret.Data[ref.Key]
	if !ok && !optional {
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, namespace, ref.Name)
	}
	return string(value), ok, nil
}

func find(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// notFound puts the error of a missing object into the kubelet's words: configmap "x" not found.
func notFound(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(v1.Resource(kind), name)
	}
	return fmt.Errorf("%s %q: %w", kind, name, err)
}
