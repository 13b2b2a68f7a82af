package nodepressure

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// folders are Cgroups.
type folders struct{ pressure, pods, node string }

func (f folders) PodsPressure() string { return f.pressure }
func (f folders) PodsMemcg() string    { return f.pods }
func (f folders) NodeMemcg() string    { return f.node }

func TestNotifierOptions(t *testing.T) {
	system := eviction.SystemPressure
	for name, tc := range map[string]struct {
		cgroups     folders
		kernelMemcg bool
		pressure    []string
		memcg       map[eviction.Signal]string
	}{
		"neither": {pressure: []string{system}},
		"cgroup v2": {
			cgroups:  folders{pressure: "/pods/memory.pressure"},
			pressure: []string{system, "/pods/memory.pressure"},
		},
		"cgroup v1": {
			cgroups:  folders{pods: "/pods", node: "/"},
			pressure: []string{system},
			memcg:    map[eviction.Signal]string{eviction.AllocatableMemory: "/pods"},
		},
		"cgroup v1 and thresholds in the kernel": {
			cgroups:     folders{pods: "/pods", node: "/"},
			kernelMemcg: true,
			pressure:    []string{system},
			memcg: map[eviction.Signal]string{
				eviction.AllocatableMemory: "/pods", eviction.Memory: "/",
			},
		},
	} {
		got := notifierOptions(tc.cgroups, tc.kernelMemcg, nil)
		if diff := cmp.Diff(tc.pressure, got.Pressure); diff != "" {
			t.Errorf("%s: files of PSI (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tc.memcg, got.Memcg); diff != "" {
			t.Errorf("%s: memory cgroups (-want +got):\n%s", name, diff)
		}
	}
}

// answers is a PLEG of a runtime that answers and has nothing.
type answers struct{ pleg.Interface }

func (answers) Healthy() error              { return nil }
func (answers) Get(types.UID) *observed.Pod { return nil }

// noted is a Recorder that notes reasons.
type noted struct {
	events.Interface
	reasons []string
}

func (n *noted) NodeEventf(_, reason, _ string, _ ...any) { n.reasons = append(n.reasons, reason) }

// TestManager: a node that is short of disk shows it, says so in an event, frees what nobody needs, and tells who
// asked.
func TestManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := stats.FS{Known: true, Device: 1, CapacityBytes: 1000, AvailableBytes: 10}
		var freed []string
		recorded, changed, h := &noted{}, 0, &health.Registry{}
		m := New(Options{
			Settings: Settings{Config: eviction.Config{Thresholds: []eviction.Threshold{{
				Signal: eviction.NodeFS,
				Value:  eviction.Value{Amount: 100},
			}}}},
			Desired:  desired.New(),
			Stats:    usage{stats.NodeUsage{NodeFS: full, ImageFS: full}},
			PLEG:     answers{},
			Statuses: status.NewManager(nil),
			Cgroups:  folders{},
			Stopper:  &ender{},
			Garbage:  removed{&freed, nil},
			Recorder: recorded,
			Health:   h,
			Changed:  func() { changed++ },
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.Manager.Run(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Run = %v, want no error", err)
		}
		if len(freed) < 2 || freed[0] != "containers" || freed[1] != "images" {
			t.Errorf("freed %v, want containers and then images", freed)
		}
		if changed == 0 || len(recorded.reasons) == 0 || recorded.reasons[0] != "EvictionThresholdMet" {
			t.Errorf("told %d times, events %v; want at least once, EvictionThresholdMet", changed, recorded.reasons)
		}
		want := []v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}}
		got := m.NodeConditions()
		if len(got) != 1 || got[0].Type != want[0].Type || got[0].Status != want[0].Status {
			t.Errorf("conditions = %v, want %v", got, want)
		}
		if list := h.Snapshot(); len(list) != 1 || list[0].Code != health.DiskPressure {
			t.Errorf("health = %v, want %s", list, health.DiskPressure)
		}
	})
}
