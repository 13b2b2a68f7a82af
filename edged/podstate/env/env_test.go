package env

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// store words a missing object as an API server does.
type store struct{ broken error }

func (s store) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	switch {
	case s.broken != nil:
		return nil, s.broken
	case namespace == "shop" && name == "c":
		return &v1.ConfigMap{Data: map[string]string{"color": "red", "size": "1", "with-dash": "d", "empty": ""},
			BinaryData: map[string][]byte{"bin": {1}}}, nil
	case namespace == "shop" && name == "odd":
		return &v1.ConfigMap{Data: map[string]string{"1st": "ok", "a=b": "no", "ü": "no", "fine": "yes"}}, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmaps"), name)
}

func (s store) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	switch {
	case s.broken != nil:
		return nil, s.broken
	case namespace == "shop" && name == "s":
		return &v1.Secret{Data: map[string][]byte{"password": []byte("$(hunter2)"), "size": []byte("2")}}, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
}

func testPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "web-0",
			Namespace:   "shop",
			UID:         "u-1",
			Labels:      map[string]string{"app": "web", "a/b": `q"uote`},
			Annotations: map[string]string{"note": "n", "x['y": "odd"},
		},
		Spec: v1.PodSpec{NodeName: "edge-1", ServiceAccountName: "default"},
	}
}

func quantities(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func facts() Facts {
	return Facts{
		PodIPs:      []string{"10.1.0.4", "fd00::4"},
		HostIPs:     []string{"192.0.2.7", "2001:db8::7"},
		NodeName:    "other",
		Allocatable: quantities("4", "1Gi"),
	}
}

func lines(vars []*runtimeapi.KeyValue) (out []string) {
	for _, v := range vars {
		out = append(out, v.Key+"="+string(v.Value))
	}
	return out
}

func val(name, value string) v1.EnvVar { return v1.EnvVar{Name: name, Value: value} }

func ref(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }

func cmKey(name, object, key string, optional *bool) v1.EnvVar {
	return v1.EnvVar{
		Name: name, ValueFrom: &v1.EnvVarSource{
			ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref(object), Key: key, Optional: optional},
		},
	}
}

func secretKeyVar(name, object, key string, optional *bool) v1.EnvVar {
	return v1.EnvVar{
		Name: name, ValueFrom: &v1.EnvVarSource{
			SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ref(object), Key: key, Optional: optional},
		},
	}
}

func field(name, path string) v1.EnvVar {
	return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}
}

func res(name, container, what, divisor string) v1.EnvVar {
	r := &v1.ResourceFieldSelector{ContainerName: container, Resource: what}
	if divisor != "" {
		r.Divisor = resource.MustParse(divisor)
	}
	return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{ResourceFieldRef: r}}
}

func fromCM(prefix, name string, optional *bool) v1.EnvFromSource {
	return v1.EnvFromSource{
		Prefix: prefix, ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref(name), Optional: optional},
	}
}

func fromSecret(prefix, name string, optional *bool) v1.EnvFromSource {
	return v1.EnvFromSource{
		Prefix: prefix, SecretRef: &v1.SecretEnvSource{LocalObjectReference: ref(name), Optional: optional},
	}
}

func TestMake(t *testing.T) {
	yes := ptr.To(true)
	for _, tc := range []struct {
		name    string
		from    []v1.EnvFromSource
		env     []v1.EnvVar
		want    []string
		invalid []string
	}{
		{name: "nothing"},
		{
			name: "values in order", env: []v1.EnvVar{val("B", "1"), val("A", ""), val("C", "x=y z")},
			want: []string{"B=1", "A=", "C=x=y z"},
		},
		{
			name: "references see what stands before", env: []v1.EnvVar{
				val("A", "$(B)"), val("B", "b"), val("C", "<$(A)$(B)>"), val("D", "$$(B) $(NO) $(B"),
			},
			want: []string{"A=$(B)", "B=b", "C=<$(B)b>", "D=$(B) $(NO) $(B"},
		},
		{
			name: "the later of a name, in the place of the first",
			env:  []v1.EnvVar{val("A", "1"), val("B", "2"), val("A", "$(A)3")}, want: []string{"A=13", "B=2"},
		},
		{
			name: "keys", env: []v1.EnvVar{cmKey("A", "c", "color", nil), secretKeyVar("B", "s", "password", nil),
				cmKey("E", "c", "empty", nil), val("C", "$(A) $(B)")},
			want: []string{"A=red", "B=$(hunter2)", "E=", "C=red $(hunter2)"},
		}, // what a secret holds is not expanded
		{
			name: "optional and missing", env: []v1.EnvVar{cmKey("A", "none", "k", yes), cmKey("B", "c", "none", yes),
				secretKeyVar("C", "none", "k", yes), secretKeyVar("D", "s", "none", yes), val("E", "$(A)")},
			want: []string{"E=$(A)"},
		},
		{
			name: "all keys of both",
			from: []v1.EnvFromSource{fromCM("", "c", nil), fromSecret("S_", "s", nil)},
			env:  []v1.EnvVar{val("X", "$(color)-$(S_size)")},
			want: []string{"color=red", "empty=", "size=1", "with-dash=d", "S_password=$(hunter2)", "S_size=2",
				"X=red-2"},
		},
		{
			name: "later source and env override",
			from: []v1.EnvFromSource{fromCM("", "c", nil), fromSecret("", "s", nil)},
			env:  []v1.EnvVar{val("color", "blue")},
			want: []string{"color=blue", "empty=", "size=2", "with-dash=d", "password=$(hunter2)"},
		},
		{name: "optional sources", from: []v1.EnvFromSource{fromCM("", "none", yes), fromSecret("", "none", yes), {}}},
		{
			name:    "names that are none",
			from:    []v1.EnvFromSource{fromCM("", "odd", nil), fromCM("P ", "odd", nil)},
			want:    []string{"1st=ok", "fine=yes", "P 1st=ok", "P fine=yes"},
			invalid: []string{"a=b", "ü", "P a=b", "P ü"},
		},
		{
			name: "fields", env: []v1.EnvVar{
				field("A", "metadata.name"), field("B", "metadata.namespace"), field("C", "metadata.uid"),
				field("D", "metadata.labels['app']"),
				field("E", "metadata.annotations['note']"), field("F", "metadata.labels['none']"),
				field("G", "spec.nodeName"), field("H", "spec.serviceAccountName"),
				field("I", "status.podIP"), field("J", "status.podIPs"), field("K", "status.hostIP"),
				field("L", "status.hostIPs"), field("M", "metadata.annotations['x['y']"),
			},
			want: []string{"A=web-0", "B=shop", "C=u-1", "D=web", "E=n", "F=", "G=edge-1", "H=default", "I=10.1.0.4",
				"J=10.1.0.4,fd00::4", "K=192.0.2.7",
				"L=192.0.2.7,2001:db8::7", "M=odd"},
		},
		{
			name: "resources", env: []v1.EnvVar{
				res("A", "", "limits.cpu", ""), res("B", "", "limits.cpu", "1m"),
				res("C", "", "limits.memory", "1Mi"), res("D", "", "requests.cpu", "1m"),
				res("E", "", "requests.memory", ""), res("F", "init", "limits.memory", "1Ki"),
				res("G", "free", "limits.cpu", ""), res("H", "free", "limits.memory", "1Mi"),
				res("I", "free", "requests.cpu", ""), res("J", "", "limits.ephemeral-storage", ""),
			},
			want: []string{"A=2", "B=1500", "C=65", "D=100", "E=1000", "F=1", "G=4", "H=1024", "I=0", "J=0"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod()
			c := v1.Container{Name: "app", Env: tc.env, EnvFrom: tc.from, Resources: v1.ResourceRequirements{
				Limits: quantities("1500m", "65Mi"), Requests: quantities("100m", "1k")}}
			pod.Spec.Containers = []v1.Container{c, {Name: "free"}}
			pod.Spec.InitContainers = []v1.Container{
				{Name: "init", Resources: v1.ResourceRequirements{Limits: quantities("1", "1")}},
			}
			vars, invalid, err := Make(t.Context(), pod, &c, facts(), store{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, lines(vars)); diff != "" {
				t.Errorf("environment mismatch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.invalid, invalid); diff != "" {
				t.Errorf("invalid names mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMakeErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		from []v1.EnvFromSource
		env  []v1.EnvVar
		want string
	}{
		{"no configmap", nil, []v1.EnvVar{cmKey("A", "x", "k", nil)}, `configmap "x" not found`},
		{"no secret", nil, []v1.EnvVar{secretKeyVar("A", "x", "k", ptr.To(false))}, `secret "x" not found`},
		{"no key", nil, []v1.EnvVar{cmKey("A", "c", "k", nil)}, "couldn't find key k in ConfigMap shop/c"},
		{"no secret key", nil, []v1.EnvVar{secretKeyVar("A", "s", "k", nil)}, "couldn't find key k in Secret shop/s"},
		{
			"binary data is no text", nil, []v1.EnvVar{cmKey("A", "c", "bin", nil)},
			"couldn't find key bin in ConfigMap shop/c",
		},
		{"no configmap at all", []v1.EnvFromSource{fromCM("", "x", nil)}, nil, `configmap "x" not found`},
		{"no secret at all", []v1.EnvFromSource{fromSecret("", "x", nil)}, nil, `secret "x" not found`},
		{"field", nil, []v1.EnvVar{field("A", "status.phase")}, "unsupported fieldPath: status.phase"},
		{"resource", nil, []v1.EnvVar{res("A", "", "limits.gpu", "")}, "unsupported container resource : limits.gpu"},
		{"resource without kind", nil, []v1.EnvVar{res("A", "", "cpu", "")}, "unsupported container resource : cpu"},
		{"container", nil, []v1.EnvVar{res("A", "x", "limits.cpu", "")}, "container x not found"},
		{
			"too long", nil, []v1.EnvVar{val("A", strings.Repeat("x", maxString()-2))},
			fmt.Sprintf("container app: environment variable A has %d bytes, the kernel takes %d; mount the value as "+
				"a file instead", maxString()+1, maxString()),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := Make(t.Context(), testPod(), &v1.Container{Name: "app", Env: tc.env, EnvFrom: tc.from},
				facts(), store{})
			if err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
	broken := store{errors.New("database is locked")}
	for _, c := range []v1.Container{
		{Env: []v1.EnvVar{cmKey("A", "c", "k", ptr.To(true))}},
		{Env: []v1.EnvVar{secretKeyVar("A", "c", "k", ptr.To(true))}},
		{EnvFrom: []v1.EnvFromSource{fromCM("", "c", ptr.To(true))}},
		{EnvFrom: []v1.EnvFromSource{fromSecret("", "c", ptr.To(true))}},
	} {
		// An optional object that cannot be read is not one that is missing.
		if _, _, err := Make(t.Context(), testPod(), &c, facts(), broken); err == nil ||
			!strings.Contains(err.Error(), `"c": database is locked`) {
			t.Errorf("Make: %v, want database is locked", err)
		}
	}
}

func TestFieldsThatTheSpecLacks(t *testing.T) {
	pod := testPod()
	pod.Spec.NodeName = ""
	pod.Spec.HostNetwork = true
	for path, want := range map[string]string{
		"spec.nodeName": "other", "status.podIP": "192.0.2.7", "status.podIPs": "192.0.2.7,2001:db8::7",
		"metadata.labels": "a/b=\"q\\\"uote\"\napp=\"web\"", "metadata.annotations": "note=\"n\"\nx['y=\"odd\"",
	} {
		if got, err := Field(pod, path, facts()); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	if got, err := Field(testPod(), "status.podIP", Facts{}); err != nil || got != "" {
		t.Errorf("status.podIP without an address = %q, %v; want none", got, err)
	}
}

// A few variables that name each other twice would have more bytes than the device has memory.
func TestExpansionIsBounded(t *testing.T) {
	c := &v1.Container{Name: "app", Env: []v1.EnvVar{val("V0", "xxxxxxxxxx")}}
	for i := range 60 {
		c.Env = append(c.Env, val(fmt.Sprintf("V%d", i+1), fmt.Sprintf("$(V%d)$(V%d)", i, i)))
	}
	vars, _, err := Make(t.Context(), testPod(), c, facts(), store{})
	if err != nil {
		t.Fatal(err) // references that would be too long stay as they are
	}
	for _, v := range vars {
		if len(v.Value) > maxString() {
			t.Errorf("%s has %d bytes, want at most %d", v.Key, len(v.Value), maxString())
		}
	}
	c.Env = []v1.EnvVar{val("A", strings.Repeat("x", 100_000))}
	for i := range 10_000 {
		c.Env = append(c.Env, val(fmt.Sprintf("B%d", i), "$(A)"))
	}
	if _, _, err := Make(t.Context(), testPod(), c, facts(), store{}); err == nil ||
		!strings.Contains(err.Error(), "the environment has more than the 6291456 bytes") {
		t.Errorf("Make: %v, want the environment has more than the 6291456 bytes", err)
	}
	args := make([]string, 10_000)
	for i := range args {
		args[i] = strings.Repeat("$(A)", 10)
	}
	total := 0
	for _, arg := range ExpandAll(args, []*runtimeapi.KeyValue{
		{Key: "A", Value: []byte(strings.Repeat("x", 10_000))},
	}) {
		total += len(arg)
	}
	if total > maxTotal+len(args)*len(args[0]) {
		t.Errorf("arguments have %d bytes, want at most %d", total, maxTotal+len(args)*len(args[0]))
	}
}

// TestDefaultLimits: the node's, or those of the pod as a whole; huge pages are not the node's.
func TestDefaultLimits(t *testing.T) {
	huge := v1.ResourceName("hugepages-2Mi")
	f := facts()
	f.Allocatable[huge] = resource.MustParse("64Mi")
	c := v1.Container{
		Name: "app", Env: []v1.EnvVar{
			res("C", "", "limits.cpu", "1m"), res("M", "", "limits.memory", "1Mi"),
			res("H", "", "limits.hugepages-2Mi", "1Mi"),
		},
	}
	of := func(pod *v1.Pod) []string {
		t.Helper()
		vars, _, err := Make(t.Context(), pod, &c, f, store{})
		if err != nil {
			t.Fatal(err)
		}
		return lines(vars)
	}
	pod := testPod()
	if diff := cmp.Diff([]string{"C=4000", "M=1024", "H=0"}, of(pod)); diff != "" {
		t.Errorf("limits of the node mismatch (-want +got):\n%s", diff)
	}
	pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}}
	c.Resources.Limits = v1.ResourceList{huge: resource.MustParse("4Mi")}
	if diff := cmp.Diff([]string{"C=500", "M=1024", "H=4"}, of(pod)); diff != "" {
		t.Errorf("limits of the pod mismatch (-want +got):\n%s", diff)
	}
	if got := f.Allocatable.Cpu().MilliValue(); got != 4000 {
		t.Errorf("the node's allocatable CPU = %dm, want 4000m as before", got)
	}
}
