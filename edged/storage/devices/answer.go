package devices

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxAnswer bounds what a plugin says to one Allocate: it is kept on the disk.
const maxAnswer = 256 << 10

// Answer is what devices need in a container.
type Answer struct {
	Envs        map[string]string       `json:"envs,omitempty"`
	Annotations map[string]string       `json:"annotations,omitempty"`
	Mounts      []*runtimeapi.Mount     `json:"mounts,omitempty"`
	Devices     []*runtimeapi.Device    `json:"devices,omitempty"`
	CDIDevices  []*runtimeapi.CDIDevice `json:"cdiDevices,omitempty"`
}

// newAnswer reads what a plugin said.
func newAnswer(r *api.ContainerAllocateResponse) (*Answer, error) {
	if size := proto.Size(r); size > maxAnswer {
		return nil, fmt.Errorf("the answer to Allocate has %d bytes; the most is %d", size, maxAnswer)
	}
	a := &Answer{Envs: r.GetEnvs(), Annotations: r.GetAnnotations()}
	for _, m := range r.GetMounts() {
		if !filepath.IsAbs(m.GetContainerPath()) || !filepath.IsAbs(m.GetHostPath()) {
			return nil, fmt.Errorf("mount %q at %q: want absolute paths", m.GetHostPath(), m.GetContainerPath())
		}
		a.Mounts = append(a.Mounts, &runtimeapi.Mount{
			ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.ReadOnly,
		})
	}
	for _, d := range r.GetDevices() {
		if !filepath.IsAbs(d.GetContainerPath()) || !filepath.IsAbs(d.GetHostPath()) {
			return nil, fmt.Errorf("device %q at %q: want absolute paths", d.GetHostPath(), d.GetContainerPath())
		}
		if strings.Trim(d.Permissions, "rwm") != "" {
			return nil, fmt.Errorf("device %q: permissions %q: want some of r, w and m", d.HostPath, d.Permissions)
		}
		a.Devices = append(a.Devices, &runtimeapi.Device{
			ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions,
		})
	}
	for _, d := range r.GetCdiDevices() {
		a.CDIDevices = append(a.CDIDevices, &runtimeapi.CDIDevice{Name: d.GetName()})
	}
	return a, nil
}

// merge joins the answers for several resources. Where two speak of one variable, path or name, the later one, in the
// order of the resources' names, is left out. It is pure.
func merge(answers []*Answer) Answer {
	var out Answer
	for _, a := range answers {
		out.Envs = fill(out.Envs, a.Envs)
		out.Annotations = fill(out.Annotations, a.Annotations)
		out.Mounts = appendNew(out.Mounts, a.Mounts, func(m *runtimeapi.Mount) string { return m.ContainerPath })
		out.Devices = appendNew(out.Devices, a.Devices, func(d *runtimeapi.Device) string { return d.ContainerPath })
		out.CDIDevices = appendNew(out.CDIDevices, a.CDIDevices, func(d *runtimeapi.CDIDevice) string { return d.Name })
	}
	return out
}

func fill(to, from map[string]string) map[string]string {
	if to == nil && len(from) > 0 {
		to = map[string]string{}
	}
	for key, value := range from {
		if _, ok := to[key]; !ok {
			to[key] = value
		}
	}
	return to
}

func appendNew[T any](to, from []T, key func(T) string) []T {
	for _, v := range from {
		if !slices.ContainsFunc(to, func(have T) bool { return key(have) == key(v) }) {
			to = append(to, v)
		}
	}
	return to
}

// Variables are the environment variables, by name, but those that are set already.
func (a Answer) Variables(set []*runtimeapi.KeyValue) []*runtimeapi.KeyValue {
	var out []*runtimeapi.KeyValue
	for _, name := range slices.Sorted(maps.Keys(a.Envs)) {
		if !slices.ContainsFunc(set, func(kv *runtimeapi.KeyValue) bool { return kv.Key == name }) {
			out = append(out, &runtimeapi.KeyValue{Key: name, Value: []byte(a.Envs[name])})
		}
	}
	return out
}

// MountsBeside are the mounts, but those at whose path another mount is.
func (a Answer) MountsBeside(set []*runtimeapi.Mount) []*runtimeapi.Mount {
	var out []*runtimeapi.Mount
	for _, m := range a.Mounts {
		if !slices.ContainsFunc(set, func(s *runtimeapi.Mount) bool {
			return filepath.Clean(s.ContainerPath) == filepath.Clean(m.ContainerPath)
		}) {
			out = append(out, m)
		}
	}
	return out
}
