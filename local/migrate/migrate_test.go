package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/podstate/adopted"
	"github.com/edgecore-io/edgecore/local/adopt"
	"github.com/edgecore-io/edgecore/metamanager/store"
)

// theirs are the folders in which KubeEdge has files.
var theirs = []string{"etc/kubeedge", "var/lib/kubeedge", "etc/systemd", "usr"}

// running are the containers that run.
func (d *device) running() []string {
	list, err := d.client.ListContainers(d.t.Context(), &runtimeapi.ListContainersRequest{})
	must(d.t, err)
	var ids []string
	for _, c := range list.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			ids = append(ids, c.Id)
		}
	}
	return ids
}

// taken checks that this agent has the device, and all that it needs.
func (d *device) taken() {
	d.t.Helper()
	if d.agent != "edgecore" || d.effective() != "edgecore" {
		d.t.Fatalf("agent %q runs with the unit of %q, want edgecore with its own unit", d.agent, d.effective())
	}
	record := d.record()
	web := d.pod("web", "u-web")
	spec := &web.Spec.Containers[0]
	if len(record.Containers) != 2 || len(record.Static) != 1 {
		d.t.Errorf("the record is %+v, want 2 containers and one pod", record)
	}
	for id := range record.Containers {
		for _, carries := range []uint64{adopt.SpecHash(spec), 0xabc} {
			if got := record.Hash(id, carries); got != carries && got != runtime.Hash(spec) {
				d.t.Errorf("container %s counts as %x, want %x or %x", id, got, carries, runtime.Hash(spec))
			}
		}
	}
	if _, err := os.Stat(d.path("usr/local/bin/edgecore")); err == nil {
		d.t.Errorf("%s exists, want it removed: it goes before our program", d.path("usr/local/bin/edgecore"))
	}
}

// record reads the store as the agent does.
func (d *device) record() *adopted.Record {
	d.t.Helper()
	db, _, err := store.Open(d.t.Context(), d.path("var/lib/edgecore/edgecore.db"), store.Options{Reserve: -1})
	must(d.t, err)
	defer func() { must(d.t, db.Close()) }()
	text, err := db.AgentValue(d.t.Context(), adopted.Key)
	must(d.t, err)
	r, err := adopted.Parse(text)
	must(d.t, err)
	row, err := db.Get(d.t.Context(), "default/pod/web")
	must(d.t, err)
	if !strings.Contains(string(row.Value), "u-web") {
		d.t.Errorf("the pod is %s, want \"u-web\"", row.Value)
	}
	return r
}

// returned checks that KubeEdge has the device again, with its earlier files.
func (d *device) returned(before map[string]string) {
	d.t.Helper()
	if d.agent != "KubeEdge" {
		d.t.Errorf("%q runs, want \"KubeEdge\"", d.agent)
	}
	if diff := cmp.Diff(before, d.files(theirs...)); diff != "" {
		d.t.Errorf("KubeEdge's files (-want +got):\n%s", diff)
	}
	if left := d.files("etc/edgecore", "var/lib/edgecore"); len(left) > 0 {
		d.t.Errorf("left behind: %v, want none", left)
	}
}

// TestThereAndBack takes a device over and gives it back.
func TestThereAndBack(t *testing.T) {
	for _, packaged := range []bool{false, true} {
		t.Run(fmt.Sprintf("packaged=%v", packaged), func(t *testing.T) {
			d := newDevice(t)
			if packaged {
				d.write("usr/lib/systemd/system/"+systemd.Name,
					systemd.Unit(d.path("usr/bin/edgecore"), d.path("etc/edgecore/edgecore.yaml")), 0o644)
			}
			before, run := d.files(theirs...), d.running()
			take, output := d.takeover()
			must(t, take.Adopt(t.Context()))
			d.taken()
			for _, name := range []string{"etc/kubeedge/config/edgecore.yaml", "etc/kubeedge/certs/server.key",
				"var/lib/kubeedge/edgecore.db"} {
				if now := d.files(theirs...)[name]; now != before[name] {
					t.Errorf("%s = %q, want %q", name, now, before[name])
				}
			}
			if ours := d.files("etc/systemd")["etc/systemd/system/"+systemd.Name]; (ours == "") != packaged {
				t.Errorf("the administrator's unit is %q, want none: %v", ours, packaged)
			}
			link := "-> /etc/systemd/system/" + systemd.Name
			if packaged {
				link = "-> /usr/lib/systemd/system/" + systemd.Name
			}
			if got := d.files("etc/systemd")["etc/systemd/system/multi-user.target.wants/"+systemd.Name]; got != link {
				t.Errorf("the link is %q, want %q", got, link)
			}
			if diff := cmp.Diff(run, d.running()); diff != "" {
				t.Errorf("containers after adopt (-want +got):\n%s", diff)
			}
			again, _ := d.takeover()
			if err := again.Adopt(t.Context()); !errors.Is(err, ErrDone) {
				t.Errorf("a second adopt: %v, want %v", err, ErrDone)
			}
			undo, _ := d.takeover()
			must(t, undo.Undo(t.Context()))
			d.returned(before)
			if diff := cmp.Diff(run, d.running()); diff != "" {
				t.Errorf("containers after undo (-want +got):\n%s", diff)
			}
			if err := undo.Undo(t.Context()); !errors.Is(err, ErrNothing) {
				t.Errorf("undone twice: %v, want ErrNothing", err)
			}
			t.Logf("said:\n%s", output)
		})
	}
}

// TestPowerCuts takes the power away at each moment, there and on the way back. After each, a boot starts an agent that
// has what it needs; the same command then finishes what was begun.
func TestPowerCuts(t *testing.T) {
	t.Run("there", func(t *testing.T) {
		t.Parallel()
		cuts := 0
		for at := 1; cutThere(t, at); at++ {
			cuts++
		}
		if cuts < 10 {
			t.Errorf("%d moments, want at least 10", cuts)
		}
	})
	t.Run("back", func(t *testing.T) {
		t.Parallel()
		cuts := 0
		for at := 1; cutOnTheWayBack(t, at); at++ {
			cuts++
		}
		if cuts < 5 {
			t.Errorf("%d moments of the way back, want at least 5", cuts)
		}
	})
}

// cutThere cuts the power at an event of the way there. It returns false if all was done before that event.
func cutThere(t *testing.T, at int) bool {
	t.Helper()
	d := newDevice(t)
	before := d.files(theirs...)
	d.crashAt = at
	if !d.crashes(func() error { take, _ := d.takeover(); return take.Adopt(d.t.Context()) }) {
		return false
	}
	d.boot()
	if at%2 == 0 { // back from the middle
		take, _ := d.takeover()
		if err := take.Undo(t.Context()); err != nil && !errors.Is(err, ErrNothing) {
			t.Fatalf("cut at event %d: undo: %v, want nil or %v", at, err, ErrNothing)
		}
		d.returned(before)
	}
	take, _ := d.takeover()
	if err := take.Adopt(t.Context()); err != nil && !errors.Is(err, ErrDone) {
		t.Fatalf("cut at event %d: adopt again: %v, want nil or %v", at, err, ErrDone)
	}
	d.taken()
	take, _ = d.takeover()
	must(t, take.Undo(t.Context()))
	d.returned(before)
	return true
}

// cutOnTheWayBack cuts the power at an event of the way back. It returns false if all was done before that event.
func cutOnTheWayBack(t *testing.T, at int) bool {
	t.Helper()
	d := newDevice(t)
	before := d.files(theirs...)
	take, _ := d.takeover()
	must(t, take.Adopt(t.Context()))
	d.crashAt, d.events = at, 0
	if !d.crashes(func() error { take, _ := d.takeover(); return take.Undo(d.t.Context()) }) {
		d.returned(before)
		return false
	}
	d.boot()
	take, _ = d.takeover()
	if err := take.Adopt(t.Context()); err == nil && d.agent != "edgecore" {
		t.Errorf("cut at event %d of the way back: adopted, and %q runs, want edgecore", at, d.agent)
	}
	take, _ = d.takeover()
	if err := take.Undo(t.Context()); err != nil && !errors.Is(err, ErrNothing) {
		t.Fatalf("cut at event %d of the way back: undo: %v, want nil or %v", at, err, ErrNothing)
	}
	d.returned(before)
	return true
}

// crashes runs something until the power goes; false is that it came to its end before.
func (d *device) crashes(do func() error) (crashed bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(power); !ok {
				panic(r)
			}
			crashed = true
		}
		d.crashAt = 0
	}()
	must(d.t, do())
	return false
}

// boot starts what is enabled.
func (d *device) boot() {
	d.t.Helper()
	d.stop()
	if _, err := os.Lstat(d.path("etc/systemd/system/multi-user.target.wants/" + systemd.Name)); err != nil {
		d.t.Errorf("the unit enabled after a power cut: %v, want it to exist", err)
	}
	if err := d.startEffective(); err != nil {
		d.t.Errorf("start of the agent after a power cut: %v, want no error", err)
	}
}

// TestFails: what goes wrong leaves KubeEdge in its place, and says why.
func TestFails(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*device)
		want    string
	}{
		"our agent does not answer": {func(d *device) { d.deaf, d.wait = true, time.Second }, "does not answer"},
		"the runtime is away": {func(d *device) {
			d.cri.Fail("ListContainers", 1, errors.New("boom"))
		}, "boom"},
		"the runtime goes when KubeEdge is stopped": {func(d *device) {
			d.replaceSystemctl = func(args []string) error {
				if args[0] == "stop" {
					d.cri.Fail("ListContainers", 1, errors.New("gone now"))
				}
				return nil
			}
		}, "gone now"},
		"the service is not stopped": {func(d *device) {
			d.replaceSystemctl = func(args []string) error {
				if args[0] == "stop" {
					return errors.New("no permission")
				}
				return nil
			}
		}, "no permission"},
		"the service does not start": {func(d *device) {
			d.replaceSystemctl = func(args []string) error {
				if args[0] == "restart" {
					return errors.New("failed with result 'exit-code'")
				}
				return nil
			}
		}, "exit-code"},
		"a container would be restarted": {func(d *device) {
			pod := d.pod("other", "u-other")
			d.run(pod, 1)
		}, "would be ended"},
		"a pod has a block device": {func(d *device) {
			dir := d.path("var/lib/kubelet/pods/u-web/volumeDevices/kubernetes.io~csi")
			must(d.t, os.MkdirAll(dir, 0o750))
			must(d.t, os.Symlink("/dev/loop7", filepath.Join(dir, "pv-1")))
		}, "default/web has a volume of volumeMode Block"},
		"its store is none": {func(d *device) {
			d.write("var/lib/kubeedge/edgecore.db", "", 0o600)
		}, "no table meta"},
		"there is no store": {func(d *device) { must(d.t, os.Remove(d.path("var/lib/kubeedge/edgecore.db"))) },
			"no such file"},
		"there is no KubeEdge": {func(d *device) {
			must(d.t, os.Remove(d.path("etc/kubeedge/config/edgecore.yaml")))
		}, "no configuration of KubeEdge"},
		"edgecore has run here": {func(d *device) {
			d.write("var/lib/edgecore/edgecore.db", "x", 0o600)
		}, "edgecore has run on this device"},
		"the pods lie elsewhere": {func(d *device) {
			must(d.t, os.RemoveAll(d.path("var/lib/kubelet/pods")))
		}, "rootDirectory"},
		"its program was replaced": {func(d *device) {
			must(d.t, os.Remove(d.path("usr/local/bin/edgecore")))
			must(d.t, os.Link(d.path("usr/bin/edgecore"), d.path("usr/local/bin/edgecore")))
		}, "taken the place of KubeEdge's program"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDevice(t)
			test.prepare(d)
			before := d.files(theirs...)
			ours := d.files("etc/edgecore", "var/lib/edgecore")
			take, output := d.takeover()
			err := take.Adopt(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q\n%s", err, test.want, output)
			}
			if d.agent != "KubeEdge" {
				t.Errorf("%q runs, want KubeEdge", d.agent)
			}
			if diff := cmp.Diff(before, d.files(theirs...)); diff != "" {
				t.Errorf("KubeEdge's files (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(ours, d.files("etc/edgecore", "var/lib/edgecore")); diff != "" {
				t.Errorf("our files (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBusyRuntime: a runtime that does not answer at once is asked again.
func TestBusyRuntime(t *testing.T) {
	d := newDevice(t)
	for _, method := range []string{"Version", "ListPodSandbox", "PodSandboxStatus"} {
		d.cri.Fail(method, 1, status.Error(codes.Unavailable, "connection refused"))
	}
	take, _ := d.takeover()
	must(t, take.Adopt(t.Context()))
	d.taken()
}

// TestPlan: what is done is said before, and what will not be as it was.
func TestPlan(t *testing.T) {
	d := newDevice(t)
	take, _ := d.takeover()
	p, err := take.Look(t.Context())
	must(t, err)
	must(t, p.Refused(false))
	var out bytes.Buffer
	take.Print(&out, p)
	for _, want := range []string{
		"Node edge1", "2 pods (1 of manifests), 2 containers run on",
		"1. write configuration " + d.path("etc/edgecore/edgecore.yaml"), "2. stop edgecore.service of " +
			d.path("etc/systemd/system"),
		"move that unit aside", "rename KubeEdge's program", "modules.edged.enableMetrics: left out",
		"edgecore.service.d are KubeEdge's, and are moved aside", "--undo",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("plan = %s\nwant it to contain %q", &out, want)
		}
	}
	if agent, ours := d.effective(), d.files("etc/edgecore", "var/lib/edgecore"); agent != "KubeEdge" || len(ours) > 0 {
		t.Errorf("after the plan: agent %q, our files %v, want KubeEdge, none", agent, ours)
	}
}

// TestConfigOfBefore: a package's configuration comes back with the way back.
func TestConfigOfBefore(t *testing.T) {
	d := newDevice(t)
	d.write("etc/edgecore/edgecore.yaml", "# the package's\n", 0o640)
	take, _ := d.takeover()
	must(t, take.Adopt(t.Context()))
	undo, _ := d.takeover()
	must(t, undo.Undo(t.Context()))
	got := d.files("etc/edgecore")["etc/edgecore/edgecore.yaml"]
	if !strings.HasPrefix(got, "-rw-r-----") || !strings.HasSuffix(got, "# the package's\n") {
		t.Errorf("it is %q, want a text that begins with \"-rw-r-----\", a text that ends with \"# the package's\\n\"",
			got)
	}
}

// TestDisabled: a service that was not started at boot, and did not run, is not started by the way back.
func TestDisabled(t *testing.T) {
	d := newDevice(t)
	must(t, os.Remove(d.path("etc/systemd/system/multi-user.target.wants/"+systemd.Name)))
	d.agent = ""
	before := d.files(theirs...)
	take, _ := d.takeover()
	must(t, take.Adopt(t.Context()))
	d.taken()
	undo, output := d.takeover()
	must(t, undo.Undo(t.Context()))
	if d.agent != "" || !strings.Contains(output.String(), "it did not run before") {
		t.Errorf("%q runs\n%s, want \"\", \"it did not run before\"", d.agent, output)
	}
	if diff := cmp.Diff(before, d.files(theirs...)); diff != "" {
		t.Errorf("KubeEdge's files (-want +got):\n%s", diff)
	}
}

// TestDamagedStore: what can be read of it counts, and a pod that it has lost is not ended for that.
func TestDamagedStore(t *testing.T) {
	d := newDevice(t)
	name := d.path("var/lib/kubeedge/edgecore.db")
	data, err := os.ReadFile(name)
	must(t, err)
	copy(data[4096:], bytes.Repeat([]byte{0xff}, 64)) // the head of the page on which the table begins
	d.write("var/lib/kubeedge/edgecore.db", string(data), 0o600)
	take, _ := d.takeover()
	p, err := take.Look(t.Context())
	must(t, err)
	if !strings.Contains(strings.Join(p.Warnings, "\n"), "KubeEdge's store is damaged") {
		t.Errorf("warnings %q, want that KubeEdge's store is damaged", p.Warnings)
	}
	if err := p.Refused(false); err == nil || !strings.Contains(err.Error(), "default/web: it runs, and neither") {
		t.Errorf("got %v, want an error with \"default/web: it runs, and neither\"", err)
	}
	if after, err := os.ReadFile(name); err != nil || !bytes.Equal(after, data) {
		t.Errorf("KubeEdge's store = %d bytes, %v, want its %d bytes unchanged", len(after), err, len(data))
	}
}
