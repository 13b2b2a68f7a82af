package nodepressure

import (
	"context"
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// usage is a Stats with one measurement of the node.
type usage struct{ stats.NodeUsage }

func (u usage) Node(context.Context) (stats.NodeUsage, error)      { return u.NodeUsage, nil }
func (usage) Pods(context.Context) ([]stats.PodUsage, error)       { return nil, nil }
func (usage) PodsMemory(context.Context) ([]stats.PodUsage, error) { return nil, nil }
func (usage) Summary(context.Context, bool) (*statsapi.Summary, error) {
	return &statsapi.Summary{}, nil
}

// removed is a Garbage that notes what was removed.
type removed struct {
	list *[]string
	err  error
}

func (r removed) FreeContainers(context.Context) error {
	*r.list = append(*r.list, "containers")
	return r.err
}

func (r removed) FreeImages(context.Context, func(context.Context) bool) error {
	*r.list = append(*r.list, "images")
	return nil
}

func TestFree(t *testing.T) {
	one := stats.NodeUsage{NodeFS: stats.FS{Known: true, Device: 1}, ImageFS: stats.FS{Known: true, Device: 1}}
	two := one
	two.ImageFS.Device = 2
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		usage  stats.NodeUsage
		signal eviction.Signal
		enough bool
		err    error
		want   []string
	}{
		"containers are enough": {
			one, eviction.Signal("nodefs.available"), true, nil, []string{"containers"},
		},
		"one disk": {
			one, eviction.Signal("nodefs.available"), false, nil, []string{"containers", "images"},
		},
		"images lie elsewhere": {
			two, eviction.Signal("nodefs.available"), false, nil, []string{"containers"},
		},
		"the disk of images": {
			two, eviction.Signal("imagefs.inodesFree"), false, nil, []string{"containers", "images"},
		},
		"containers that cannot be removed": {
			one, eviction.Signal("nodefs.available"), false, broken, []string{"containers"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			r := reclaimer{stats: usage{tc.usage}, garbage: removed{&got, tc.err}}
			err := r.free(t.Context(), tc.signal, func(context.Context) bool { return tc.enough })
			if !slices.Equal(got, tc.want) || !errors.Is(err, tc.err) {
				t.Errorf("removed %v, %v; want %v, %v", got, err, tc.want, tc.err)
			}
		})
	}
}

// ender is a Stopper that notes why a pod ends.
type ender struct{ why status.Stopped }

func (e *ender) Stop(_ *v1.Pod, why status.Stopped, _ map[string]string) { e.why = why }
func (e *ender) Ended(types.UID) <-chan struct{}                         { return nil }

func TestEvict(t *testing.T) {
	e := &ender{}
	evict(e, &v1.Pod{}, "too much", nil, 7)
	if e.why.Reason != "Evicted" || e.why.Message != "too much" || *e.why.Grace != 7 ||
		e.why.Condition.Type != v1.DisruptionTarget {
		t.Errorf("the pod ends with %+v, want Evicted, its message, 7 seconds and DisruptionTarget", e.why)
	}
}

func TestShow(t *testing.T) {
	h := &health.Registry{}
	codes := func() (list []health.Code) {
		for _, c := range h.Snapshot() {
			list = append(list, c.Code)
		}
		slices.Sort(list)
		return list
	}
	show(h, []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodePIDPressure}, nil, nil)
	if got, want := codes(), []health.Code{health.MemoryPressure, health.PIDPressure}; !slices.Equal(got, want) {
		t.Errorf("conditions = %v, want %v", got, want)
	}
	show(h, []v1.NodeConditionType{v1.NodeDiskPressure}, nil, nil)
	if got, want := codes(), []health.Code{health.DiskPressure}; !slices.Equal(got, want) {
		t.Errorf("conditions later = %v, want %v", got, want)
	}
}
