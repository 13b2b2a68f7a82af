package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/connectivity"
	v1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/plugins"
	"github.com/edgecore-io/edgecore/test/testenv/listening"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var _ plugins.Handler = (*Manager)(nil)

// TestLife: devices come, fall ill, are given out and back, and go.
func TestLife(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	if needs, serves := m.Wants(wants("1", camera, "1")), m.Serves(camera); needs || serves {
		t.Errorf("before a registration: Wants = %t, Serves = %t, want false, false", needs, serves)
	}
	p := plugged(t, dir, camera, "camera.sock", &fake{}, "a", "b", "c!")
	counts(t, m, camera, 3, 2)
	p.set("a", "b", "c")
	counts(t, m, camera, 3, 3)
	p.set("b", "c", "d!")
	counts(t, m, camera, 3, 2)

	one, two := wants("1", camera, "1"), wants("2", camera, "2")
	if err := m.Allocate(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	err := m.Allocate(t.Context(), two)
	if err == nil ||
		err.Error() != "requested number of devices unavailable for example.com/camera. Requested: 2, Available: 1" {
		t.Errorf("two of one: %v, want requested number of devices unavailable", err)
	}
	got, err := m.Container(t.Context(), one, &one.Spec.Containers[0])
	if err != nil || len(got.Devices) != 1 || got.Devices[0].HostPath != "/dev/b" || got.Envs["DEVICES"] != "b" {
		t.Errorf("Container = %+v, %v; want device b", got, err)
	}
	m.Free("1")
	if err := m.Allocate(t.Context(), two); err != nil {
		t.Errorf("after the other had ended: %v, want no error", err)
	}
	if diff := cmp.Diff([]Held{{Resource: camera, IDs: []string{"b", "c"}}}, m.Held("2", "main")); diff != "" {
		t.Errorf("held devices mismatch (-want +got):\n%s", diff)
	}
	p.set("b!", "d!")
	counts(t, m, camera, 2, 0)
	health := []v1.ResourceHealth{
		{ResourceID: "b", Health: v1.ResourceHealthStatusUnhealthy},
		{ResourceID: "c", Health: v1.ResourceHealthStatusUnknown},
	}
	if diff := cmp.Diff(map[string][]v1.ResourceStatus{"main": {{Name: camera, Resources: health}}},
		m.Health("2")); diff != "" {
		t.Errorf("health mismatch (-want +got):\n%s", diff)
	}
	if err := m.Allocate(t.Context(), one); err == nil ||
		!strings.HasPrefix(err.Error(), "no healthy devices present; cannot allocate unhealthy devices") {
		t.Errorf("Allocate: %v, want no healthy devices present", err)
	}
}

// TestPluginEnds: its devices are counted and not given out for a grace, and then no more; it may come back.
func TestPluginEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	changed := make(chan struct{}, 100)
	m, _ := running(t, Options{Dir: dir, Changed: func() { changed <- struct{}{} }})
	p := plugged(t, dir, camera, "camera.sock", &fake{}, "a", "b")
	counts(t, m, camera, 2, 2)
	pod := wants("1", camera, "1")
	if err := m.Allocate(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	p.server.Stop()
	counts(t, m, camera, 2, 0)
	if !m.Serves(camera) || m.Health("1")["main"][0].Resources[0].Health != v1.ResourceHealthStatusUnknown {
		t.Errorf("served %v, health %v; want true and Unknown", m.Serves(camera), m.Health("1"))
	}
	if err := m.Allocate(t.Context(), wants("2", camera, "1")); err == nil ||
		err.Error() != "cannot allocate unregistered device example.com/camera" {
		t.Errorf("Allocate: %v, want cannot allocate unregistered device example.com/camera", err)
	}
	m.mu.Lock() // the grace passes
	m.resources[camera].ended = time.Now().Add(-2 * Grace)
	m.mu.Unlock()
	counts(t, m, camera, 0, 0)
	if m.Serves(camera) {
		t.Errorf("Serves(%s) after the grace = true, want false", camera)
	}
	for len(changed) > 0 {
		<-changed
	}
	// What the pod has it keeps, with what the plugin said, when its container starts again.
	if got, err := m.Container(t.Context(), pod, &pod.Spec.Containers[0]); err != nil || len(got.Devices) != 1 {
		t.Errorf("Container = %+v, %v; want one device", got, err)
	}
	plugged(t, dir, camera, "camera2.sock", &fake{}, "a", "b")
	counts(t, m, camera, 2, 2)
	wait.Receive(t, "the change to be reported", changed)
}

// TestNewPluginTakesOver: a plugin that registers beside another of its resource replaces it, and the end of the
// old one changes nothing.
func TestNewPluginTakesOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	old := plugged(t, dir, camera, "old.sock", &fake{}, "a")
	counts(t, m, camera, 1, 1)
	plugged(t, dir, camera, "new.sock", &fake{}, "a", "b")
	counts(t, m, camera, 2, 2)
	old.set("x", "y", "z")
	old.server.Stop()
	if err := m.Allocate(t.Context(), wants("1", camera, "2")); err != nil {
		t.Error(err)
	}
	counts(t, m, camera, 2, 2)
}

// TestStreamEnds: a plugin whose stream breaks off while its socket stays is asked again.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	f := &fake{}
	plugged(t, dir, camera, "camera.sock", f, "a")
	counts(t, m, camera, 1, 1)
	f.server.Stop()
	counts(t, m, camera, 1, 0)
	(&fake{}).serve(t, dir, "camera.sock", "a", "b") // the same path, without a registration
	counts(t, m, camera, 2, 2)
}

// TestPluginRestarts: a plugin that comes back to its socket and registers is watched once, however often that happens.
func TestPluginRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	f := plugged(t, dir, camera, "camera.sock", &fake{}, "a")
	counts(t, m, camera, 1, 1)
	for range 3 {
		m.mu.Lock()
		before := m.resources[camera].watched
		m.mu.Unlock()
		f.server.Stop()
		counts(t, m, camera, 1, 0)
		f = plugged(t, dir, camera, "camera.sock", &fake{}, "a")
		counts(t, m, camera, 1, 1)
		wait.Until(t, "one watch", func() error {
			if state := before.conn.GetState(); state != connectivity.Shutdown {
				return fmt.Errorf("the connection of before is %s, want %s", state, connectivity.Shutdown)
			}
			if n := f.watched(0); n != 1 {
				return fmt.Errorf("watched %d times, want once", n)
			}
			return nil
		})
	}
}

// TestAgentRestarts: what was allocated is known again; sockets are removed, so that plugins notice; and after a
// reboot the plugin prepares the same devices again.
func TestAgentRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, stop := running(t, Options{Dir: dir, BootID: "boot-1"})
	plugged(t, dir, camera, "camera.sock", &fake{}, "a", "b", "c")
	counts(t, m, camera, 3, 3)
	pod, gone := wants("1", camera, "1"), wants("2", camera, "1")
	for _, p := range []*v1.Pod{gone, pod} {
		if err := m.Allocate(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	m.Free(gone.UID)
	stop()

	m, stop = running(t, Options{Dir: dir, BootID: "boot-1"})
	if _, err := os.Stat(filepath.Join(dir, "camera.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the plugin's socket: %v, want %v", err, os.ErrNotExist)
	}
	counts(t, m, camera, 0, 0)
	if got, err := m.Container(t.Context(), pod, &pod.Spec.Containers[0]); err != nil ||
		got.Devices[0].HostPath != "/dev/b" {
		t.Errorf("Container = %+v, %v; want device b", got, err)
	}
	if err := m.Allocate(t.Context(), gone); err == nil {
		t.Error("Allocate without a plugin = nil, want an error")
	}
	back := plugged(t, dir, camera, "camera.sock", &fake{}, "a", "b", "c")
	counts(t, m, camera, 3, 3)
	if err := m.Allocate(t.Context(), wants("3", camera, "3")); err == nil {
		t.Error("Allocate of three devices of which another pod has one = nil, want an error")
	}
	if asked, _ := back.calls(); len(asked) != 0 {
		t.Errorf("asked in the same boot: %v, want nothing", asked)
	}
	stop()

	m, _ = running(t, Options{Dir: dir, BootID: "boot-2"})
	if _, err := m.Container(t.Context(), pod, &pod.Spec.Containers[0]); err == nil ||
		!strings.Contains(err.Error(), "has not registered since the machine started") {
		t.Errorf("Container: %v, want has not registered since the machine started", err)
	}
	back = plugged(t, dir, camera, "again.sock", &fake{}, "a", "b!")
	counts(t, m, camera, 2, 1)
	if _, err := m.Container(t.Context(), pod, &pod.Spec.Containers[0]); err == nil ||
		!strings.Contains(err.Error(), "previously allocated devices are no longer healthy") {
		t.Errorf("Container: %v, want previously allocated devices are no longer healthy", err)
	}
	back.set("a", "b")
	counts(t, m, camera, 2, 2)
	for range 2 {
		if got, err := m.Container(t.Context(), pod, &pod.Spec.Containers[0]); err != nil ||
			got.Devices[0].HostPath != "/dev/b" {
			t.Errorf("Container = %+v, %v; want device b", got, err)
		}
	}
	if asked, _ := back.calls(); cmp.Diff([][]string{{"b"}}, asked) != "" {
		t.Errorf("asked for %v, want b once", asked)
	}
}

// TestInitContainers: what an init container has goes to the containers after it; what a sidecar has does not.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	plugged(t, dir, camera, "camera.sock", &fake{}, "a", "b", "c", "d")
	counts(t, m, camera, 4, 4)
	pod := wants("1", camera, "1")
	pod.Spec.InitContainers = []v1.Container{
		asks("first", camera, "2"), asks("sidecar", camera, "1"), asks("second", camera, "1"),
	}
	pod.Spec.InitContainers[1].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	pod.Spec.Containers = append(pod.Spec.Containers, asks("other", camera, "2"))
	if err := m.Allocate(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range []string{"first", "sidecar", "second", "main", "other"} {
		got[c] = fmt.Sprint(m.Held("1", c)[0].IDs)
	}
	want := map[string]string{"first": "[a b]", "sidecar": "[a]", "second": "[b]", "main": "[b]", "other": "[c d]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("held devices mismatch (-want +got):\n%s", diff)
	}
	if again := m.leftBy(pod, &pod.Spec.Containers[1], camera); len(again) != 0 {
		t.Errorf("left for a container that comes later: %v, want nothing", again)
	}
}

// TestPreferred: what a plugin prefers is taken as far as it is there, and its silence or nonsense does no harm.
func TestPreferred(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	f := &fake{options: api.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: true}}
	var answer []string
	var failure error
	f.prefer = func(_ context.Context, r *api.ContainerPreferredAllocationRequest) ([]string, error) {
		if r.AllocationSize != 2 || len(r.AvailableDeviceIDs) != 4 {
			t.Errorf("asked %v, want 2 of 4", r)
		}
		return answer, failure
	}
	plugged(t, dir, camera, "camera.sock", f, "a", "b", "c", "d")
	counts(t, m, camera, 4, 4)
	pod := wants("1", camera, "2")
	for _, c := range []struct {
		answer []string
		err    error
		want   string
	}{
		{[]string{"d", "b"}, nil, "[b d]"}, {[]string{"x", "d", "d"}, nil, "[a d]"}, {nil, nil, "[a b]"},
		{[]string{"d", "c", "b"}, nil, "[c d]"}, {nil, errors.New("no"), "[a b]"},
	} {
		answer, failure = c.answer, c.err
		if err := m.Allocate(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(m.Held("1", "main")[0].IDs); got != c.want {
			t.Errorf("prefers %v: got %s, want %s", c.answer, got, c.want)
		}
		if _, err := m.Container(t.Context(), pod, &pod.Spec.Containers[0]); err != nil {
			t.Error(err)
		}
		m.Free("1")
	}
	if _, started := f.calls(); len(started) != 5 || fmt.Sprint(started[0]) != "[b d]" {
		t.Errorf("PreStartContainer: %v, want 5 calls, the first with b and d", started)
	}
}

// TestRegistersFirst: a plugin may register before it serves, and say its options with that.
func TestRegistersFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	f := &fake{old: true}
	registered := make(chan error, 1)
	go func() {
		registered <- register(t, dir, &api.RegisterRequest{
			Version:      api.Version,
			Endpoint:     "late.sock",
			ResourceName: camera,
			Options:      &api.DevicePluginOptions{PreStartRequired: true},
		})
	}()
	f.serve(t, dir, "late.sock", "a")
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	counts(t, m, camera, 1, 1)
	pod := wants("1", camera, "1")
	if err := m.Allocate(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Container(t.Context(), pod, &pod.Spec.Containers[0]); err != nil {
		t.Fatal(err)
	}
	if _, started := f.calls(); len(started) != 1 {
		t.Errorf("PreStartContainer: %v, want one call", started)
	}
}

// TestAnnounced: a plugin that the folder of all plugins has found, and that leaves it again.
func TestAnnounced(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	(&fake{}).serve(t, elsewhere, "p.sock", "a")
	endpoint := filepath.Join(elsewhere, "p.sock")
	if err := m.Validate(camera, endpoint, []string{"v9"}); err == nil {
		t.Error("Validate(version v9) = nil, want an error")
	}
	if err := m.Validate(camera, endpoint, []string{"v9", api.Version}); err != nil {
		t.Error(err)
	}
	if err := m.Register(t.Context(), camera, endpoint, []string{api.Version}); err != nil {
		t.Fatal(err)
	}
	counts(t, m, camera, 1, 1)
	m.Deregister(camera, "/another.sock")
	counts(t, m, camera, 1, 1)
	m.Deregister(camera, endpoint)
	counts(t, m, camera, 1, 0)
	if err := m.Allocate(t.Context(), wants("1", camera, "1")); err == nil {
		t.Error("Allocate after Deregister = nil, want an error")
	}
}

// TestHanging: a plugin that hangs delays its own pod only, and no longer than that pod is wanted.
func TestHanging(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	hangs := make(chan struct{}, 1)
	plugged(t, dir, radio, "radio.sock", &fake{
		allocate: func(ctx context.Context, _ []string) (*api.ContainerAllocateResponse, error) {
			hangs <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}, "r")
	plugged(t, dir, camera, "camera.sock", &fake{}, "a")
	counts(t, m, radio, 1, 1)
	counts(t, m, camera, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Allocate(ctx, wants("1", radio, "1")); err == nil {
			t.Error("Allocate by a plugin that hangs = nil, want an error")
		}
	})
	<-hangs
	if err := m.Allocate(t.Context(), wants("2", camera, "1")); err != nil {
		t.Error(err)
	}
	if err := m.Allocate(t.Context(), wants("3", radio, "1")); err == nil {
		t.Error("Allocate of a device that another Allocate has = nil, want an error")
	}
	cancel()
	wg.Wait()
	if got := m.Pods(); len(got) != 1 || got[0] != "2" {
		t.Errorf("pods with devices: %v, want 2", got)
	}
	if data, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || strings.Contains(string(data), `"1"`) ||
		strings.Contains(string(data), `"3"`) {
		t.Errorf("the file has %s, %v; want pod 2 only", data, err)
	}
}

// TestRace: pods that come at once get different devices, and none more than it asked for.
func TestRace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, _ := running(t, Options{Dir: dir})
	f := &fake{options: api.DevicePluginOptions{GetPreferredAllocationAvailable: true}}
	f.prefer = func(context.Context, *api.ContainerPreferredAllocationRequest) ([]string, error) {
		return []string{"a", "b"}, nil
	}
	plugged(t, dir, camera, "camera.sock", f, "a", "b", "c", "d", "e", "f", "g")
	counts(t, m, camera, 7, 7)
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for i := range 5 {
		wg.Go(func() {
			if err := m.Allocate(t.Context(), wants(fmt.Sprint(i), camera, "2")); err != nil {
				mu.Lock()
				failed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, uid := range m.Pods() {
		for _, id := range m.Held(uid, "main")[0].IDs {
			if seen[id] {
				t.Errorf("device %s is held by two pods, want one", id)
			}
			seen[id] = true
		}
	}
	if failed != 2 || len(seen) != 6 {
		t.Errorf("%d pods were refused, %d devices given out; want 2 and 6", failed, len(seen))
	}
}

// TestListening: a socket that cannot be opened is reported with its error, and once it is open.
func TestListening(t *testing.T) {
	listening.Reported(t, func(dir string, report func(string, error)) (func(context.Context) error, string) {
		return New(Options{Dir: dir, Listening: report}).Run, filepath.Join(dir, socketName)
	})
}
