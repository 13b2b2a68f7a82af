package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/deviceplugin"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// deviceRows are about device plugins and extended resources.
func deviceRows() []row {
	return []row{
		{name: "device-plugin", spec: `containers: [{name: main}]`, check: checkDevicePlugin},
		{name: "device-init", spec: `containers: [{name: main}]`, check: checkDeviceInit},
		{name: "device-plugin-fails", spec: `containers: [{name: main}]`, check: func(p *pod) {
			p.running()
			p.plugin([]string{"-fail"}, "one")
			p.extended("1", "1")
			fails := p.sibling("pod", "containers: [{name: main, resources: {limits: {example.com/@NAME@: 1}}}]")
			fails.rejected("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due to ")
			fails.rejected("UnexpectedAdmissionError", "the device is on fire, which is unexpected")
			fails.event("UnexpectedAdmissionError", "the device is on fire")
			fails.delete()
		}},
		{
			// A resource that no node has is the cluster's, which the scheduler counts.
			name: "extended-resource-elsewhere",
			spec: `containers: [{name: main, resources: {limits: {example.com/of-the-cluster: 3}}}]`,
			check: func(p *pod) {
				s := p.running().Status.ContainerStatuses[0]
				if q := s.AllocatedResources["example.com/of-the-cluster"]; q.Value() != 3 ||
					len(s.AllocatedResourcesStatus) != 0 {
					p.Errorf("allocated %v, %v, want 3, none", s.AllocatedResources, s.AllocatedResourcesStatus)
				}
			},
		},
		{
			name: "resource-claims",
			spec: `
resourceClaims: [{name: gpu, resourceClaimName: mine}]
containers: [{name: main, resources: {claims: [{name: gpu}]}}]
`,
			check: func(p *pod) {
				p.event("FailedCreatePodSandBox", "spec.resourceClaims: this node does not allocate claimed devices")
				p.waits("main", "ContainerCreating", "")
			},
		},
		{
			name: "extended-resource-claim",
			spec: `containers: [{name: main}]`,
			check: func(p *pod) {
				p.running()
				claimed := p.claimed("gpu")
				claimed.event("FailedCreatePodSandBox", "example.com/gpu of container main was allocated by "+
					"ResourceClaim "+strconv.Quote(claimed.name+"-extended"))
				claimed.waits("main", "ContainerCreating", "")
				claimed.delete()
			},
		},
	}
}

// claimed creates a pod whose extended resource is allocated by a ResourceClaim, and binds it to the node, as a
// scheduler does that finds a DeviceClass with the resource's name: first the status, then the binding.
func (p *pod) claimed(suffix string) *pod {
	p.Helper()
	api := p.node.api.CoreV1().Pods(p.node.name)
	obj := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name + "-" + suffix}}
	env.Must(p, yaml.UnmarshalStrict([]byte(
		`{schedulerName: the-test, containers: [{name: main, resources: {limits: {example.com/gpu: 1}}}]}`), &obj.Spec))
	complete(&obj.Spec, "")
	made, err := api.Create(p.Context(), obj, metav1.CreateOptions{})
	env.Must(p, err)
	made.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
		ResourceClaimName: made.Name + "-extended",
		RequestMappings: []v1.ContainerExtendedResourceRequest{
			{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
		},
	}
	made, err = api.UpdateStatus(p.Context(), made, metav1.UpdateOptions{})
	env.Must(p, err)
	if made.Status.ExtendedResourceClaimStatus == nil {
		p.Fatal("the API server dropped status.extendedResourceClaimStatus; want it stored")
	}
	env.Must(p, api.Bind(p.Context(), &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: made.Name, UID: made.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: p.node.name},
	}, metav1.CreateOptions{}))
	return &pod{T: p.T, node: p.node, name: made.Name, uid: made.UID}
}

// plugin starts a device plugin of the row's own resource, example.com/NAME.
func (p *pod) plugin(args []string, devices ...string) *deviceplugin.Plugin {
	return deviceplugin.Start(p.T, deviceplugin.Build(p.T), deviceplugin.Options{
		Resource: "example.com/" + p.name,
		Root:     filepath.Join(p.node.Dir, "root"),
		Dir:      filepath.Join(p.TempDir(), "plugin"),
		Args:     args,
	}, devices...)
}

// sibling creates another pod of the row.
func (p *pod) sibling(suffix, spec string) *pod {
	p.Helper()
	obj := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name + "-" + suffix}}
	env.Must(p, yaml.UnmarshalStrict([]byte(strings.NewReplacer("@NODE@", p.node.name, "@NAME@", p.name).Replace(spec)),
		&obj.Spec))
	return p.node.create(p.T, obj)
}

// extended waits until the Node tells of so many devices of the row's resource.
func (p *pod) extended(capacity, allocatable string) {
	p.Helper()
	p.until("the Node has its devices", func() error {
		obj, err := p.node.api.CoreV1().Nodes().Get(p.Context(), p.node.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		name := v1.ResourceName("example.com/" + p.name)
		all, known := obj.Status.Capacity[name]
		free := obj.Status.Allocatable[name]
		if !known || all.String() != capacity || free.String() != allocatable {
			return fmt.Errorf("capacity %s, allocatable %s, want %s and %s", all.String(), free.String(), capacity,
				allocatable)
		}
		return nil
	})
}

// held asks the podresources API which devices a pod's container has.
func (p *pod) held(container string) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(p.Context(), 10*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+filepath.Join(p.node.Dir, "root", "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	got, err := podresources.NewPodResourcesListerClient(conn).
		Get(ctx, &podresources.GetPodResourcesRequest{PodName: p.name, PodNamespace: p.node.name})
	if err != nil {
		return nil, err
	}
	for _, c := range got.PodResources.Containers {
		for _, d := range c.Devices {
			if c.Name == container {
				ids = append(ids, d.DeviceIds...)
			}
		}
	}
	return ids, nil
}

// health waits until the status says how a container's one device is.
func (p *pod) health(id string, want v1.ResourceHealthStatus) {
	p.Helper()
	p.status("its device is "+string(want), func(s *v1.PodStatus) error {
		if len(s.ContainerStatuses) == 0 {
			return errors.New("no container")
		}
		list := s.ContainerStatuses[0].AllocatedResourcesStatus
		if len(list) != 1 || len(list[0].Resources) != 1 || string(list[0].Resources[0].ResourceID) != id ||
			list[0].Resources[0].Health != want {
			return fmt.Errorf("resources are %+v, want device %s %s", list, id, want)
		}
		return nil
	})
}

func checkDevicePlugin(p *pod) {
	p.running()
	plugin := p.plugin(nil, "one", "two", "three!")
	p.extended("3", "2")
	with := func(n int) string {
		return fmt.Sprintf("containers: [{name: main, env: [{name: MINE, value: yes-$(DEVICES)}], resources: "+
			"{limits: {example.com/@NAME@: %d}}}]", n)
	}
	first := p.sibling("first", with(1))
	s := first.running().Status.ContainerStatuses[0]
	if q := s.AllocatedResources[v1.ResourceName("example.com/"+p.name)]; q.Value() != 1 {
		p.Errorf("allocated resources = %v, want 1 of example.com/%s", s.AllocatedResources, p.name)
	}
	first.says("main", "echo $DEVICES", "one")
	first.says("main", "stat -c '%F %t,%T' /dev/one; echo x >/dev/one && echo written",
		"character special file 1,3\nwritten")
	first.says("main", "cat /plugin/devices; touch /plugin/x 2>&1 | grep -o Read-only", "one two three!Read-only")
	c, err := first.container("main")
	env.Must(p, err)
	if c.Annotations["example.com/devices"] != "one" {
		p.Errorf("annotations = %v, want example.com/devices=one", c.Annotations)
	}
	if ids, err := first.held("main"); err != nil || len(ids) != 1 || ids[0] != "one" {
		p.Errorf("podresources: %v, %v, want one", ids, err)
	}
	first.health("one", v1.ResourceHealthStatusHealthy)
	plugin.Devices(p.T, "one!", "two", "three!")
	first.health("one", v1.ResourceHealthStatusUnhealthy)
	p.extended("3", "1")

	many := p.sibling("many", with(2))
	many.rejected("UnexpectedAdmissionError",
		"Pod was rejected: Allocate failed due to requested number of devices unavailable for example.com/"+p.name+
			". Requested: 2, Available: 1, which is unexpected")

	// The plugin dies: what runs keeps its device, what comes is refused; and it comes back.
	env.Must(p, plugin.End(p.Context(), syscall.SIGKILL))
	p.extended("3", "0")
	first.health("one", v1.ResourceHealthStatusUnknown)
	late := p.sibling("late", with(1))
	late.rejected("UnexpectedAdmissionError", "cannot allocate unregistered device example.com/"+p.name)
	plugin.Run(p.T)
	p.extended("3", "1")
	first.says("main", "echo $DEVICES", "one")
	again := p.sibling("again", with(1))
	again.running()
	again.says("main", "echo $DEVICES", "two")
	for _, other := range []*pod{first, many, late, again} {
		other.delete()
	}
	if ids := plugin.Calls(p.T, "Allocate"); len(ids) != 2 {
		p.Errorf("Allocate was called for %v, want it for the two pods that ran", ids)
	}
}

func checkDeviceInit(p *pod) {
	p.running()
	p.plugin([]string{"-pre-start"}, "a", "b")
	p.extended("2", "2")
	both := p.sibling("pod", `
initContainers:
- {name: first, command: [sh, -c, "echo has $DEVICES"], resources: {limits: {example.com/@NAME@: 2}}}
containers:
- {name: main, command: [sh, -c, "test -e /tmp/again || { touch /tmp/again; sleep 1; exit 1; }; echo has $DEVICES; sleep 3600"], resources: {limits: {example.com/@NAME@: 1}}, volumeMounts: [{name: tmp, mountPath: /tmp}]}
volumes: [{name: tmp, emptyDir: {}}]
`)
	both.logged("first", "has a,b")
	both.logged("main", "has a") // at its second start
	if ids, err := both.held("first"); err != nil || len(ids) != 0 {
		p.Errorf("podresources: an init container that has ended has %v, %v, want none", ids, err)
	}
	both.delete()
}
