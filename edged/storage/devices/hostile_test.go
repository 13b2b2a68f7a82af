package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestRegistrationIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	(&fake{}).serve(t, dir, "there.sock", "a")
	for name, c := range map[string]struct {
		version, resource, endpoint, want string
	}{
		"version": {
			"v1alpha", camera, "there.sock", `requested API version "v1alpha" is not supported by kubelet`,
		},
		"no domain":          {api.Version, "camera", "there.sock", "the ResourceName"},
		"Kubernetes' domain": {api.Version, "node.kubernetes.io/camera", "there.sock", "the ResourceName"},
		"requests":           {api.Version, "requests.example.com/camera", "there.sock", "the ResourceName"},
		"no name":            {api.Version, "example.com/-", "there.sock", "the ResourceName"},
		"path":               {api.Version, camera, "../there.sock", "want the name of a socket"},
		"the agent's own":    {api.Version, camera, "kubelet.sock", "want the name of a socket"},
		"no endpoint":        {api.Version, camera, "", "want the name of a socket"},
	} {
		err := register(t, dir, &api.RegisterRequest{
			Version: c.version, ResourceName: c.resource, Endpoint: c.endpoint,
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if c, _ := m.Capacity(); len(c) != 0 {
		t.Errorf("resources: %v, want none", c)
	}
	m.mu.Lock()
	for i := range maxResources - 1 {
		m.resources[fmt.Sprintf("example.com/n%d", i)] = &pool{ended: time.Now()}
	}
	m.mu.Unlock()
	last := &api.RegisterRequest{Version: api.Version, ResourceName: "example.com/last", Endpoint: "there.sock"}
	if err := register(t, dir, last); err != nil {
		t.Fatal(err)
	}
	if err := register(t, dir, &api.RegisterRequest{
		Version: api.Version, ResourceName: camera, Endpoint: "there.sock",
	}); err == nil || !strings.Contains(err.Error(), "256 resources are registered") {
		t.Errorf("Register: %v, want 256 resources are registered", err)
	}
}

// TestNobodyServes: a registration whose socket nobody serves is refused when the plugin has had its time to answer.
func TestNobodyServes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := New(Options{Dir: dir})
	m.optionsTimeout = time.Millisecond
	run(t, m)
	err := register(t, dir, &api.RegisterRequest{Version: api.Version, ResourceName: camera, Endpoint: "missing.sock"})
	if err == nil || !strings.Contains(err.Error(), "DeadlineExceeded") {
		t.Errorf("Register: %v, want DeadlineExceeded", err)
	}
	if c, _ := m.Capacity(); len(c) != 0 {
		t.Errorf("resources: %v, want none", c)
	}
}

func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	list := []*api.Device{
		nil, {ID: ""}, {ID: strings.Repeat("x", maxDeviceID+1)}, {ID: "twice"}, {ID: "twice", Health: api.Healthy},
	}
	for i := range maxDevices + 9 {
		list = append(list, &api.Device{
			ID: fmt.Sprint("d", i), Health: api.Healthy, Topology: &api.TopologyInfo{
				Nodes: []*api.NUMANode{nil, {ID: 1}},
			},
		})
	}
	devices, left := readDevices(list)
	if len(devices) != maxDevices || left != 13 || !devices["twice"].healthy || len(devices["d1"].numa) != 1 {
		t.Errorf("%d devices, %d left out; want %d, 13", len(devices), left, maxDevices)
	}
}

func TestAnswers(t *testing.T) {
	for name, bad := range map[string]*api.ContainerAllocateResponse{
		"size":   {Envs: map[string]string{"A": strings.Repeat("x", maxAnswer)}},
		"mount":  {Mounts: []*api.Mount{{HostPath: "etc", ContainerPath: "/etc"}}},
		"device": {Devices: []*api.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "null"}}},
		"permissions": {
			Devices: []*api.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/null", Permissions: "rwx"}},
		},
	} {
		if a, err := newAnswer(bad); err == nil {
			t.Errorf("%s: newAnswer = %+v, nil, want an error", name, a)
		}
	}
	if a, err := newAnswer(nil); err != nil || len(a.Devices) != 0 {
		t.Errorf("an empty answer: %+v, %v; want no devices", a, err)
	}
	one, err := newAnswer(&api.ContainerAllocateResponse{
		Envs:        map[string]string{"A": "1", "B": "1"},
		Annotations: map[string]string{"x": "1"},
		CdiDevices:  []*api.CDIDevice{{Name: "example.com/gpu=0"}},
		Mounts:      []*api.Mount{{HostPath: "/a", ContainerPath: "/m", ReadOnly: true}},
		Devices:     []*api.DeviceSpec{{HostPath: "/dev/a", ContainerPath: "/dev/x", Permissions: "rw"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	two, err := newAnswer(&api.ContainerAllocateResponse{
		Envs:       map[string]string{"B": "2", "C": "2"},
		CdiDevices: []*api.CDIDevice{{Name: "example.com/gpu=0"}, {Name: "example.com/gpu=1"}},
		Mounts:     []*api.Mount{{HostPath: "/b", ContainerPath: "/m"}, {HostPath: "/c", ContainerPath: "/n"}},
		Devices:    []*api.DeviceSpec{{HostPath: "/dev/b", ContainerPath: "/dev/x", Permissions: "r"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := merge([]*Answer{one, two})
	want := Answer{
		Envs:        map[string]string{"A": "1", "B": "1", "C": "2"},
		Annotations: map[string]string{"x": "1"},
		Mounts: []*runtimeapi.Mount{
			{HostPath: "/a", ContainerPath: "/m", Readonly: true}, {HostPath: "/c", ContainerPath: "/n"},
		},
		Devices:    []*runtimeapi.Device{{HostPath: "/dev/a", ContainerPath: "/dev/x", Permissions: "rw"}},
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "example.com/gpu=0"}, {Name: "example.com/gpu=1"}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("merge mismatch (-want +got):\n%s", diff)
	}
	vars := got.Variables([]*runtimeapi.KeyValue{{Key: "B"}})
	if len(vars) != 2 || vars[0].Key != "A" || vars[1].Key != "C" {
		t.Errorf("variables %v, want A and C: B is the container's own", vars)
	}
	if mounts := got.MountsBeside([]*runtimeapi.Mount{{ContainerPath: "/m/"}}); len(mounts) != 1 ||
		mounts[0].ContainerPath != "/n" {
		t.Errorf("mounts %v, want /n: /m is the container's own", mounts)
	}
}

func TestChoose(t *testing.T) {
	for name, c := range map[string]struct {
		n                     int
		must, preferred, free string
		want                  string
	}{
		"first":         {2, "", "", "a b c", "[a b]"},
		"preferred":     {2, "", "c b", "a b c", "[b c]"},
		"must":          {2, "x", "c", "a b c", "[c x]"},
		"only must":     {1, "x y", "a", "a", "[x]"},
		"what is taken": {2, "", "z c", "a b c", "[a c]"},
	} {
		if got := fmt.Sprint(choose(c.n, strings.Fields(c.must), strings.Fields(c.preferred),
			strings.Fields(c.free))); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestNUMA(t *testing.T) {
	at := map[string][]int64{"a": {0}, "b": {1}, "c": {0}}
	want := []Held{
		{camera, []string{"a", "c"}, []int64{0}}, {camera, []string{"b"}, []int64{1}}, {camera, []string{"d"}, nil},
	}
	if diff := cmp.Diff(want, byNUMA(camera, []string{"a", "b", "c", "d"}, func(id string) []int64 {
		return at[id]
	})); diff != "" {
		t.Errorf("byNUMA mismatch (-want +got):\n%s", diff)
	}
}

// TestFileIsDamaged: it is set aside, and the agent goes on.
func TestFileIsDamaged(t *testing.T) {
	for name, text := range map[string]string{
		"cut": `{"version":1,"pods":{"a":{"b":`, "version": `{"version":9}`, "no version": `{}`,
		"no reader":  `{"version":3,"oldestReader":2}`,
		"no devices": `{"version":1,"pods":{"u":{"c":{"example.com/x":{"ids":[]}}}}}`,
		"null":       `{"version":1,"pods":{"u":{"c":{"example.com/x":null}}}}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m := New(Options{Dir: dir})
		if len(m.Pods()) != 0 || m.Serves("example.com/x") {
			t.Errorf("%s: Pods() = %v, Serves() = %t, want none, false", name, m.Pods(), m.Serves("example.com/x"))
		}
		if aside, err := os.ReadFile(filepath.Join(dir, fileName+".corrupt")); err != nil || string(aside) != text {
			t.Errorf("%s: %q was set aside, %v; want %q", name, aside, err, text)
		}
	}
}

// TestFileOfNewerVersion: an older agent keeps the allocations of a newer one's file, if the file says that it can.
func TestFileOfNewerVersion(t *testing.T) {
	dir := t.TempDir()
	text := `{"version":2,"oldestReader":1,"new":true,"pods":{"u":{"c":{"example.com/x":{"ids":["a"],"answer":{}}}}}}`
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m := New(Options{Dir: dir})
	if !m.Serves("example.com/x") || m.Forgotten() {
		t.Errorf("Serves() = %t, Forgotten() = %t; want the allocation of the file", m.Serves("example.com/x"),
			m.Forgotten())
	}
	if used := m.allocated.usedDevices("example.com/x"); !used["a"] {
		t.Errorf("used = %v, want a", used)
	}
}

// FuzzDecode: whatever the file says, what is taken from it can be written and read again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(
		`{"version":1,"resources":["example.com/x"],"pods":{"u":{"c":{"example.com/x":{"ids":["a"],"answer":{"envs":{"A":"b"},"devices":[{"host_path":"/dev/x"}]}}}}}}`))
	f.Add([]byte(`{"version":1}`))
	for _, text := range membound.JSON(
		`{"version":1,"pods":{"u":{"c":{"example.com/x":{"ids":["a"],"answer":{"mounts":`, `}}}}}}`, 32<<10) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var c content
		var err error
		// An empty mount has 3 bytes and becomes a message of a hundred, in a list that grows by a quarter.
		membound.Check(t, membound.Linear(len(data), 512), func() { c, err = decode(data) })
		if err != nil {
			return
		}
		m := &Manager{opts: Options{Dir: t.TempDir()}, resources: map[string]*pool{}, allocated: c.Pods}
		if m.allocated == nil {
			m.allocated = allocations{}
		}
		if err := m.save(); err != nil {
			t.Fatal(err)
		}
		for uid, containers := range m.allocated {
			m.Health(uid)
			for container := range containers {
				m.Held(uid, container)
			}
		}
	})
}
