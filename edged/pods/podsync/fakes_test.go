package podsync

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/pods/deadline"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// calls records the calls of all fakes in their order, and makes some of them fail.
type calls struct {
	list []string
	fail map[string]error
}

func (c *calls) add(call string) error {
	c.list = append(c.list, call)
	return c.fail[call]
}

type fakePLEG struct {
	pleg.Interface
	*calls
	pod     *observed.Pod
	healthy error
}

func (f *fakePLEG) Get(types.UID) *observed.Pod { return f.pod }

func (f *fakePLEG) Healthy() error { return f.healthy }

func (f *fakePLEG) Refresh(context.Context, types.UID) (*observed.Pod, error) {
	if err := f.add("refresh"); err != nil || f.pod != nil {
		return f.pod, err
	}
	return &observed.Pod{UID: "1", Detailed: true}, nil
}

type fakeRuntime struct {
	*calls
	result runtime.SyncResult
	input  runtime.SyncInput
	// kill is called by KillPod and remove by RemovePod; nil does nothing.
	kill, remove func(ctx context.Context)
}

func (f *fakeRuntime) SyncPod(_ context.Context, in runtime.SyncInput) runtime.SyncResult {
	_, f.input = f.add("sync"), in
	return f.result
}

func (f *fakeRuntime) KillPod(ctx context.Context, _ types.UID, _ *v1.Pod, _ *observed.Pod, _ *int64) error {
	if f.kill != nil {
		f.kill(ctx)
	}
	return f.add("kill")
}

func (f *fakeRuntime) ReleaseSandboxes(context.Context, *v1.Pod, *observed.Pod) error {
	return f.add("release sandboxes")
}

func (f *fakeRuntime) RemovePod(ctx context.Context, _ *observed.Pod) error {
	if f.remove != nil {
		f.remove(ctx)
	}
	return f.add("remove containers")
}

type fakePodStatus struct {
	*calls
	finished bool
}

func (f *fakePodStatus) Update(*v1.Pod, *observed.Pod, *runtime.SyncResult) bool { return f.finished }
func (f *fakePodStatus) Terminated(*v1.Pod, *observed.Pod)                       { _ = f.add("terminated status") }
func (f *fakePodStatus) Conclude(*v1.Pod)                                        { _ = f.add("conclude status") }
func (f *fakePodStatus) Probe(*v1.Pod, *observed.Pod) observed.Probes            { return observed.Probes{} }

type fakeStopper struct {
	podstop.Interface
	why *status.Stopped
}

func (f *fakeStopper) Why(types.UID) *status.Stopped { return f.why }

type fakeAllocations struct {
	*calls
	unstored *bool // a resize was admitted and is not stored
}

func (f fakeAllocations) Allocate(pod *v1.Pod) *v1.Pod        { return pod }
func (f fakeAllocations) Unstored(types.UID) (n int, is bool) { return 1, *f.unstored }
func (f fakeAllocations) Stored(types.UID, int)               { _ = f.add("resize stored") }
func (f fakeAllocations) EnsureCgroup(*v1.Pod) error          { return f.add("ensure cgroup") }
func (f fakeAllocations) Forget(types.UID)                    { _ = f.add("forget allocation") }

func (f fakeAllocations) Resize(
	_ context.Context, _ *v1.Pod, _ *observed.Pod, probes observed.Probes,
) (observed.Probes, error) {
	if *f.unstored {
		return probes, f.add("resize")
	}
	return probes, nil
}

func (f fakeAllocations) Finish(context.Context, *v1.Pod, *observed.Pod, error) error { return nil }

type fakeVolumes struct {
	*calls
	volumes volume.Volumes
}

func (f *fakeVolumes) Setup(context.Context, *v1.Pod) (volume.Volumes, error) {
	return f.volumes, f.add("set up volumes")
}
func (f *fakeVolumes) Teardown(context.Context, types.UID) error { return f.add("tear down volumes") }
func (f *fakeVolumes) RemovePodDir(types.UID) error              { return f.add("remove folder") }

type fakeInputs struct{ *calls }

func (f fakeInputs) SetVolumes(types.UID, volume.Volumes) { _ = f.add("set volumes") }
func (f fakeInputs) Forget(types.UID)                     { _ = f.add("forget inputs") }

type fakeProber struct{ *calls }

func (f fakeProber) StopLivenessAndStartup(types.UID) { _ = f.add("end probes") }
func (f fakeProber) Forget(types.UID)                 { _ = f.add("forget probes") }

type fakeStore struct {
	*calls
	secrets map[string]*v1.Secret
	err     error
}

func (f *fakeStore) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if s := f.secrets[name]; s != nil {
		return s, nil
	}
	return nil, f.err
}
func (f *fakeStore) ReportDeleted(context.Context, *v1.Pod) error { return f.add("report deleted") }
func (f *fakeStore) ForgetStatus(context.Context, *v1.Pod) error {
	return f.add("forget stored status")
}

type fakeReports struct{ *calls }

func (f fakeReports) Flush(context.Context, types.UID) error { return f.add("flush report") }
func (f fakeReports) Drop(types.UID)                         { _ = f.add("drop report") }
func (f fakeReports) PodStatus(*v1.Pod, v1.PodStatus)        {}

// fixture is a Syncer and the fakes that it works with.
type fixture struct {
	*Syncer
	*calls
	pleg      *fakePLEG
	runtime   *fakeRuntime
	podStatus *fakePodStatus
	stopper   *fakeStopper
	volumes   *fakeVolumes
	store     *fakeStore
	unstored  bool
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	c, dir := &calls{fail: map[string]error{}}, t.TempDir()
	f := &fixture{
		calls:     c,
		pleg:      &fakePLEG{calls: c},
		runtime:   &fakeRuntime{calls: c},
		podStatus: &fakePodStatus{calls: c},
		stopper:   &fakeStopper{},
		volumes:   &fakeVolumes{calls: c},
		store:     &fakeStore{calls: c},
	}
	f.Syncer = New(Options{
		Desired:       desired.New(),
		Statuses:      status.NewManager(fakeReports{c}),
		PodStatus:     f.podStatus,
		Gate:          &shutdown.Gate{},
		Waiters:       &termination.Waiters{},
		Deadlines:     &deadline.Tracker{},
		Recorder:      events.New("n", nil),
		PLEG:          f.pleg,
		Runtime:       f.runtime,
		Stopper:       f.stopper,
		Allocations:   fakeAllocations{c, &f.unstored},
		Volumes:       f.volumes,
		Inputs:        fakeInputs{c},
		Prober:        fakeProber{c},
		Store:         f.store,
		Reports:       fakeReports{c},
		PodDir:        func(uid types.UID) string { return dir + "/" + string(uid) },
		NetworkFor:    func(*v1.Pod, *observed.Pod) error { return c.fail["network"] },
		Prepared:      func(*v1.Pod) { _ = c.add("prepared") },
		RemoveCgroup:  func(types.UID) error { return c.add("remove cgroup") },
		ReleaseUserNS: func(types.UID) error { return c.add("release user namespace") },
		FreeDevices:   func(types.UID) { _ = c.add("free devices") },
		ImagesUsed:    func(*v1.Pod) { _ = c.add("images used") },
		Freed:         func() { _ = c.add("freed") },
	})
	return f
}

// messages returns the events of a reason.
func (f *fixture) messages(reason string) (all []string) {
	for _, e := range f.opts.Recorder.List() {
		if e.Reason == reason {
			all = append(all, e.Message)
		}
	}
	return all
}

func newPod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"}}
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	return pod
}
