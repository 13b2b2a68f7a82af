package adopt

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/podstate/adopted"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

var when = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func podOf(name, uid string, change ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(uid)},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{
				{Name: "main", Image: "image:1", Command: []string{"sleep"}},
			},
		},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// runs is a pod as the runtime has it, of one container with a hash.
func runs(name, uid, id string, hash uint64, change ...func(*observed.Pod)) *observed.Pod {
	obs := &observed.Pod{
		UID:       types.UID(uid),
		Namespace: "default",
		Name:      name,
		Detailed:  true,
		Sandboxes: []*observed.Sandbox{{ID: "s-" + id, Ready: true, IPs: []string{"10.0.0.1"}, CreatedAt: when}},
		Containers: []*observed.Container{{
			ID:        id,
			Name:      "main",
			SandboxID: "s-" + id,
			State:     runtimeapi.ContainerState_CONTAINER_RUNNING,
			Hash:      hash,
			Image:     "sha256:feed",
			ImageRef:  "sha256:feed",
		}},
	}
	for _, c := range change {
		c(obs)
	}
	return obs
}

func TestMatch(t *testing.T) {
	web := podOf("web", "u1")
	spec := &web.Spec.Containers[0]
	old, today := SpecHash(spec), runtime.Hash(spec)
	other := podOf("web", "u1", func(p *v1.Pod) { p.Spec.Containers[0].Image = "image:0" })
	recorded := map[string]adopted.Container{"c1": {Carries: adopted.FormatHash(old), Means: adopted.FormatHash(today)}}
	static := podOf("agent-edge1", "ours")
	type want struct {
		containers map[string]adopted.Container
		static     map[types.UID]types.UID
		running    int
		lost, idle []string
	}
	for name, test := range map[string]struct {
		facts Facts
		want  want
	}{
		"made from this spec by a kubelet before 1.31": {
			Facts{Stored: []*v1.Pod{web}, Running: []*observed.Pod{runs("web", "u1", "c1", old)}},
			want{containers: recorded, running: 1},
		},
		"by a kubelet since 1.31 there is nothing to remember": {
			Facts{Stored: []*v1.Pod{web}, Running: []*observed.Pod{runs("web", "u1", "c1", today)}},
			want{running: 1},
		},
		"of another hash, and of the image of the spec": {
			Facts{
				Stored: []*v1.Pod{web}, Running: []*observed.Pod{runs("web", "u1", "c1", 0xbad)},
				Images: map[string][]string{"image:1": {"sha256:feed"}},
			},
			want{containers: map[string]adopted.Container{
				"c1": {Carries: "bad", Means: adopted.FormatHash(today)},
			}, running: 1},
		},
		"of another hash and another image it would be restarted": {
			Facts{
				Stored: []*v1.Pod{
					web,
				}, Running: []*observed.Pod{runs("web", "u1", "c1", SpecHash(&other.Spec.Containers[0]))},
				Images: map[string][]string{"image:1": {"sha256:beef"}},
			},
			want{lost: []string{"default/web, container main: Container main definition changed, will be restarted"}},
		},
		"its sandbox has died": {
			Facts{
				Stored: []*v1.Pod{
					web,
				}, Running: []*observed.Pod{
					runs("web", "u1", "c1", old, func(o *observed.Pod) { o.Sandboxes[0].Ready = false }),
				},
			},
			want{containers: recorded, lost: []string{"default/web: its sandbox is no longer usable"}},
		},
		"nobody wants it": {
			Facts{Running: []*observed.Pod{runs("web", "u1", "c1", old)}},
			want{lost: []string{"default/web: it runs, and neither the store nor a manifest has it"}},
		},
		"what ended long ago is no loss": {
			Facts{Running: []*observed.Pod{runs("web", "u1", "c1", old, func(o *observed.Pod) {
				o.Sandboxes[0].Ready, o.Containers[0].State = false, runtimeapi.ContainerState_CONTAINER_EXITED
			})}},
			want{},
		},
		"wanted, and not there": {
			Facts{Stored: []*v1.Pod{web}},
			want{idle: []string{"default/web"}},
		},
		"on its way out": {
			Facts{
				Stored: []*v1.Pod{
					podOf("web", "u1", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: when} }),
				}, Running: []*observed.Pod{runs("web", "u1", "c1", 1)},
			},
			want{},
		},
		"a static pod keeps the UID that it has": {
			Facts{Static: []*v1.Pod{static}, Running: []*observed.Pod{runs("agent-edge1", "theirs", "c1", old)}},
			want{containers: recorded, static: map[types.UID]types.UID{"ours": "theirs"}, running: 1},
		},
		"of two of a name, the younger": {
			Facts{Static: []*v1.Pod{static}, Running: []*observed.Pod{
				runs("agent-edge1", "before", "c0", old, func(o *observed.Pod) {
					o.Sandboxes[0].CreatedAt = when.Add(-time.Hour)
				}),
				runs("agent-edge1", "theirs", "c1", old),
			}},
			want{containers: recorded, static: map[types.UID]types.UID{"ours": "theirs"}, running: 1,
				lost: []string{"default/agent-edge1: it runs, and neither"}},
		},
		"a pod of the store is no static pod": {
			Facts{
				Static: []*v1.Pod{static}, Stored: []*v1.Pod{podOf("agent-edge1", "u1")},
				Running: []*observed.Pod{runs("agent-edge1", "u1", "c1", old)},
			},
			want{containers: recorded, running: 1, idle: []string{"default/agent-edge1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Match(test.facts, when)
			if len(test.want.containers)+len(got.Record.Containers) > 0 {
				if diff := cmp.Diff(test.want.containers, got.Record.Containers); diff != "" {
					t.Errorf("containers mismatch (-want +got):\n%s", diff)
				}
			}
			if len(test.want.static)+len(got.Record.Static) > 0 {
				if diff := cmp.Diff(test.want.static, got.Record.Static); diff != "" {
					t.Errorf("static pods mismatch (-want +got):\n%s", diff)
				}
			}
			if got.Containers != test.want.running {
				t.Errorf("%d containers run on, want %d", got.Containers, test.want.running)
			}
			if diff := cmp.Diff(test.want.idle, got.Idle); diff != "" {
				t.Errorf("idle mismatch (-want +got):\n%s", diff)
			}
			if len(got.Lost) != len(test.want.lost) {
				t.Fatalf("lost %v, want %v", got.Lost, test.want.lost)
			}
			for i, l := range got.Lost {
				if !strings.HasPrefix(l.String(), test.want.lost[i]) {
					t.Errorf("lost %q, want %q", l, test.want.lost[i])
				}
			}
		})
	}
}

// TestRecord: it survives the store, stands for the containers that it names as long as they are the same, and for no
// others.
func TestRecord(t *testing.T) {
	web := podOf("web", "u1")
	old, today := SpecHash(&web.Spec.Containers[0]), runtime.Hash(&web.Spec.Containers[0])
	static := podOf("agent-edge1", "ours", func(p *v1.Pod) { p.Annotations = map[string]string{"hash": "ours"} })
	made := Match(Facts{Stored: []*v1.Pod{web}, Static: []*v1.Pod{static}, Running: []*observed.Pod{
		runs("web", "u1", "c1", old), runs("agent-edge1", "theirs", "c2", old),
	}}, when).Record
	text, err := made.Text()
	if err != nil {
		t.Fatal(err)
	}
	r, err := adopted.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, r); diff != "" {
		t.Errorf("record read back mismatch (-want +got):\n%s", diff)
	}
	for _, test := range []struct {
		id            string
		carries, want uint64
	}{{"c1", old, today}, {"c1", 5, 5}, {"c3", old, old}} {
		if got := r.Hash(test.id, test.carries); got != test.want {
			t.Errorf("container %s with hash %x: %x, want %x", test.id, test.carries, got, test.want)
		}
	}
	if got := (*adopted.Record)(nil).Hash("c1", 5); got != 5 {
		t.Errorf("Hash without a record = %x, want 5", got)
	}
	changed := podOf("agent-edge1", "changed", func(p *v1.Pod) { p.Annotations = map[string]string{"hash": "changed"} })
	r.StaticPods([]*v1.Pod{static, changed}, "hash")
	(*adopted.Record)(nil).StaticPods([]*v1.Pod{changed}, "hash")
	if static.UID != "theirs" || static.Annotations["hash"] != "theirs" || changed.UID != "changed" ||
		changed.Annotations["hash"] != "changed" {
		t.Errorf("static pods %v %v, %v %v; want theirs, changed",
			static.UID, static.Annotations, changed.UID, changed.Annotations)
	}
}
