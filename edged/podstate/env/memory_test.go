package env

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// large has one ConfigMap and one Secret for every name.
type large struct{ data map[string]string }

func (l large) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return &v1.ConfigMap{Data: l.data}, nil
}

func (l large) Secret(context.Context, string, string) (*v1.Secret, error) {
	secret := &v1.Secret{Data: map[string][]byte{}}
	for k, v := range l.data {
		secret.Data[k] = []byte(v)
	}
	return secret, nil
}

// hostilePod is a pod with many variables of one kind, each of which refers to the same large text. size is about the
// size of its objects on the wire.
func hostilePod(kind uint8, name, path, text string, count int) (pod *v1.Pod, facts Facts, objects large, size int) {
	const each = 40 // of JSON around an entry
	size = len(text) + count*(len(name)+len(path)+each)
	objects = large{map[string]string{name: text}}
	c := v1.Container{Name: "app"}
	for i := range count {
		own := name
		if kind%2 == 0 {
			own = fmt.Sprint(name, i)
		}
		ref := v1.LocalObjectReference{Name: "one"}
		from := &v1.EnvVarSource{}
		switch kind / 2 % 6 {
		case 0:
			from.FieldRef = &v1.ObjectFieldSelector{FieldPath: path}
		case 1:
			from.ResourceFieldRef = &v1.ResourceFieldSelector{Resource: path}
		case 2:
			from.ConfigMapKeyRef = &v1.ConfigMapKeySelector{LocalObjectReference: ref, Key: name}
		case 3:
			c.EnvFrom = append(c.EnvFrom, v1.EnvFromSource{
				Prefix: own, ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref},
			})
		case 4:
			c.EnvFrom = append(c.EnvFrom, v1.EnvFromSource{
				Prefix: own, SecretRef: &v1.SecretEnvSource{LocalObjectReference: ref},
			})
		case 5:
			ports := []v1.ServicePort{{Name: own, Protocol: v1.Protocol(path), Port: int32(i)}}
			meta := metav1.ObjectMeta{Namespace: "shop", Name: text}
			facts.Services = append(facts.Services, v1.Service{
				ObjectMeta: meta, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: ports},
			})
			continue
		}
		if *from != (v1.EnvVarSource{}) {
			c.Env = append(c.Env, v1.EnvVar{Name: own, ValueFrom: from})
		}
	}
	if len(facts.Services) > 0 { // one service with many ports
		s := facts.Services[0]
		for _, other := range facts.Services[1:] {
			s.Spec.Ports = append(s.Spec.Ports, other.Spec.Ports...)
		}
		facts.Services = []v1.Service{s}
	}
	notes := map[string]string{name: text}
	pod = &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: notes, Annotations: notes},
		Spec:       v1.PodSpec{Containers: []v1.Container{c}},
	}
	return pod, facts, objects, size
}

// FuzzMemory: whatever labels, annotations, objects and services a pod's variables refer to, and how often, the
// environment takes memory in proportion to what came over the wire and to what the kernel takes.
func FuzzMemory(f *testing.F) {
	for kind := range uint8(12) {
		f.Add(kind, "A", "metadata.annotations", "x", uint16(4096), uint16(4096))
		f.Add(kind, "=", "metadata.annotations['=']", "\x7f", uint16(60_000), uint16(10_000))
		f.Add(kind, "C", "metadata.labels", "\x7f", uint16(60_000), uint16(10_000))
		f.Add(kind, "B", "limits.cpu", "x", uint16(60), uint16(20_000))
	}
	f.Fuzz(func(t *testing.T, kind uint8, name, path, part string, times, count uint16) {
		text := strings.Repeat(part, min(int(times), (1<<20)/max(len(part), 1)))
		pod, facts, objects, size := hostilePod(kind, name, path, text,
			min(int(count), (1<<20)/(len(name)+len(path)+40)))
		var invalid []string
		// The values become strings, entries of a map and of a list, and are copied into the answer; a text that is not
		// printable takes ten bytes for one.
		membound.Check(t, 8*maxTotal+membound.Linear(size, 64), func() {
			_, invalid, _ = Make(t.Context(), pod, &pod.Spec.Containers[0], facts, objects)
		})
		if n := len(strings.Join(invalid, "")); n > 8<<10 {
			t.Errorf("the invalid names have %d bytes, want at most %d", n, 8<<10)
		}
	})
}
