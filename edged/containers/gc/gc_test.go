package gc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	exited  = runtimeapi.ContainerState_CONTAINER_EXITED
	created = runtimeapi.ContainerState_CONTAINER_CREATED
	lost    = runtimeapi.ContainerState_CONTAINER_UNKNOWN
)

// pod makes a pod of attempts, oldest first: "name/sandbox" with their states. Each was made a minute after the one
// before.
func pod(uid string, ended bool, boxes int, attempts ...any) Pod {
	p := &observed.Pod{UID: types.UID(uid)}
	count := map[string]uint32{}
	for i := 0; i < len(attempts); i += 2 {
		name, box, _ := strings.Cut(attempts[i].(string), "/")
		p.Containers = append(p.Containers, &observed.Container{
			ID:        fmt.Sprintf("%s-%s-%d", uid, name, count[name]),
			Name:      name,
			SandboxID: uid + "-box-" + box,
			Attempt:   count[name],
			State:     attempts[i+1].(runtimeapi.ContainerState),
			CreatedAt: now.Add(time.Duration(i/2-30) * time.Minute),
		})
		count[name]++
	}
	for i := range boxes {
		p.Sandboxes = append(p.Sandboxes, &observed.Sandbox{
			ID:        fmt.Sprintf("%s-box-%d", uid, i),
			Attempt:   uint32(i),
			Ready:     i == boxes-1 && !ended,
			CreatedAt: now.Add(time.Duration(i-40) * time.Minute),
		})
	}
	p.Sort()
	return Pod{Observed: p, Ended: ended}
}

func ids(r Removal) []string {
	var out []string
	for _, c := range r.Containers {
		out = append(out, c.ID)
	}
	for _, s := range r.Sandboxes {
		out = append(out, s.ID)
	}
	return out
}

func TestPlan(t *testing.T) {
	crashing := pod("p", false, 1, "c/0", exited, "c/0", exited, "c/0", exited, "c/0", running)
	for _, c := range []struct {
		name   string
		policy Policy
		pods   []Pod
		want   []string
	}{
		{"one stays", Policy{PerContainer: 1, Total: -1}, []Pod{crashing}, []string{"p-c-0", "p-c-1"}},
		{"all stay", Policy{PerContainer: -1, Total: -1}, []Pod{crashing}, nil},
		{"none stays", Policy{PerContainer: 0, Total: -1}, []Pod{crashing}, []string{"p-c-0", "p-c-1", "p-c-2"}},
		{"too young", Policy{PerContainer: 0, Total: -1, MinAge: 29*time.Minute + time.Second}, []Pod{crashing},
			[]string{"p-c-0"}},
		{"the newest is what comes next", Policy{}, []Pod{pod("p", false, 1, "c/0", exited)}, nil},
		{"not of an ended pod", Policy{}, []Pod{pod("p", true, 1, "c/0", exited)}, []string{"p-c-0", "p-box-0"}},
		{"never started", Policy{}, []Pod{pod("p", false, 1, "c/0", created, "c/0", running)}, []string{"p-c-0"}},
		{"in an unknown state", Policy{}, []Pod{pod("p", true, 1, "c/0", lost, "c/0", lost)}, nil},
		{"running twice", Policy{}, []Pod{pod("p", false, 1, "c/0", running, "c/0", running)}, nil},
		{
			"in all, the oldest first", Policy{PerContainer: 2, Total: 2},
			[]Pod{
				pod("p", true, 1, "a/0", exited, "a/0", exited, "b/0", exited),
				pod("q", false, 1, "c/0", exited, "c/0", running),
			},
			[]string{"p-a-0", "q-c-0"},
		},
		{
			"sandbox of kept containers", Policy{PerContainer: 1, Total: -1},
			[]Pod{pod("p", false, 2, "c/0", exited, "c/1", running)}, nil,
		},
		{
			"sandbox of none", Policy{PerContainer: 0, Total: -1},
			[]Pod{pod("p", false, 3, "c/0", exited, "c/2", running)}, []string{"p-c-0", "p-box-1", "p-box-0"},
		},
		{"pod without anything", Policy{}, []Pod{pod("p", true, 0)}, nil},
	} {
		if diff := cmp.Diff(c.want, ids(Plan(c.policy, c.pods, now))); diff != "" {
			t.Errorf("%s: Plan mismatch (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestClockWentBack: what the runtime made under a later clock is old, and not young for years.
func TestClockWentBack(t *testing.T) {
	past := now.AddDate(-50, 0, 0)
	got := ids(Plan(Policy{PerContainer: 0, Total: -1, MinAge: time.Hour}, []Pod{pod("p", true, 1, "c/0", exited)},
		past))
	if diff := cmp.Diff([]string{"p-c-0", "p-box-0"}, got); diff != "" {
		t.Errorf("Plan mismatch (-want +got):\n%s", diff)
	}
}

// fake is a runtime of one pod.
type fake struct {
	pod     *observed.Pod
	removed []string
	fail    map[string]bool
	reads   int
}

func (f *fake) RemoveContainer(_ context.Context, _ *observed.Pod, c *observed.Container) error {
	if f.fail[c.ID] {
		return errors.New("no")
	}
	f.removed = append(f.removed, c.ID)
	return nil
}

func (f *fake) RemoveSandbox(_ context.Context, id string) error {
	f.removed = append(f.removed, id)
	return nil
}

func (f *fake) refresh(context.Context, types.UID) (*observed.Pod, error) {
	f.reads++
	return f.pod, nil
}

// TestCollector: what is removed is decided again from what the runtime says then.
func TestCollector(t *testing.T) {
	now := time.Now()
	at := func(p Pod) Pod {
		for _, c := range p.Observed.Containers {
			c.CreatedAt = now.Add(-time.Hour + time.Duration(c.Attempt)*time.Minute)
		}
		for _, s := range p.Observed.Sandboxes {
			s.CreatedAt = now.Add(-time.Hour)
		}
		return p
	}
	seen := at(pod("p", false, 1, "c/0", exited, "c/0", exited, "c/0", running))
	is := at(pod("p", false, 1, "c/0", exited, "c/0", running))
	f := &fake{pod: is.Observed}
	c := New(Options{
		Runtime: f,
		Policy:  Policy{PerContainer: 0, Total: -1},
		Pods:    func() []Pod { return []Pod{seen} },
		Refresh: f.refresh,
	})
	n, err := c.Collect(t.Context())
	if diff := cmp.Diff([]string{"p-c-0"}, f.removed); diff != "" || n != 1 || err != nil || f.reads != 2 {
		t.Errorf("%d removed after %d reads, %v; want 1 and 2; removed mismatch (-want +got):\n%s",
			n, f.reads, err, diff)
	}
	quiet := &fake{}
	c = New(Options{
		Runtime: quiet,
		Policy:  Policy{PerContainer: 2, Total: -1},
		Pods:    func() []Pod { return []Pod{seen} },
		Refresh: quiet.refresh,
	})
	if n, err := c.Collect(t.Context()); n != 0 || err != nil || quiet.reads != 0 {
		t.Errorf("%d removed after %d reads, %v; want 0 and 0: there is nothing to remove", n, quiet.reads, err)
	}
	ended := at(pod("p", true, 1, "a/0", exited, "b/0", exited))
	f = &fake{pod: ended.Observed, fail: map[string]bool{"p-a-0": true}}
	c = New(Options{
		Runtime: f,
		Policy:  Policy{PerContainer: 1, Total: -1},
		Pods:    func() []Pod { return []Pod{ended} },
		Refresh: f.refresh,
	})
	if n, err := c.RemoveAllDead(t.Context()); n != 1 || err == nil || slices.Contains(f.removed, "p-box-0") {
		t.Errorf("%d removed, %v, %v; want 1, an error, and the sandbox to stay with its container", n, f.removed, err)
	}
}

func TestLeftovers(t *testing.T) {
	left, err := Leftovers(Sources{
		"folder": func() ([]types.UID, error) { return []types.UID{"a", "b", "c"}, nil },
		"cgroup": func() ([]types.UID, error) { return []types.UID{"b", "d", "b"}, nil },
		"logs":   func() ([]types.UID, error) { return []types.UID{"c"}, errors.New("half of them") },
	}, func(uid types.UID) bool { return uid == "a" })
	want := map[types.UID][]string{"b": {"cgroup", "folder"}, "c": {"folder", "logs"}, "d": {"cgroup"}}
	if diff := cmp.Diff(want, left); diff != "" || err == nil || err.Error() != "logs: half of them" {
		t.Errorf("Leftovers: %v, want logs: half of them; mismatch (-want +got):\n%s", err, diff)
	}
}

func TestRemoveDeadLinks(t *testing.T) {
	dir := t.TempDir()
	logs, links, other := filepath.Join(dir, "pods"), filepath.Join(dir, "containers"), filepath.Join(dir, "other")
	if n, err := RemoveDeadLinks(links, logs); n != 0 || err != nil {
		t.Errorf("RemoveDeadLinks without a folder = %d, %v; want 0", n, err)
	}
	for _, d := range []string{logs + "/n_p_1/c", links, other} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"0.log", "2.log.20260101-000000"} {
		if err := os.WriteFile(filepath.Join(logs, "n_p_1/c", f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"there": logs + "/n_p_1/c/0.log", "young": logs + "/n_p_1/c/1.log", "rotating": logs + "/n_p_1/c/2.log",
		"gone": logs + "/n_q_2/c/0.log", "foreign": other + "/x.log", "tricky": logs + "/../other/x.log",
		"relative": "x.log",
	} {
		if err := os.Symlink(target, filepath.Join(links, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(links, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := RemoveDeadLinks(links, logs); n != 1 || err != nil {
		t.Errorf("RemoveDeadLinks = %d, %v; want 1", n, err)
	}
	if got, later := deadLink(filepath.Join(links, "young"), logs, time.Now()),
		deadLink(filepath.Join(links, "young"), logs, time.Now().Add(2*linkMinAge)); got || !later {
		t.Errorf("a link whose log is not there yet is dead: at once %v, later %v; want false, true", got, later)
	}
	if deadLink(filepath.Join(links, "rotating"), logs, time.Now().Add(2*linkMinAge)) {
		t.Error("deadLink(a link to a log that is being rotated) = true, want false")
	}
	entries, err := os.ReadDir(links)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{"file", "foreign", "relative", "rotating", "there", "tricky", "young"},
		left); diff != "" {
		t.Errorf("links left mismatch (-want +got):\n%s", diff)
	}
}
