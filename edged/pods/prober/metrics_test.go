package prober

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
)

// metricsOf are the values of a metric by its labels in their order; of a histogram, how many attempts there were and
// how many took no longer than a second.
func metricsOf(t *testing.T, p *Prober) map[string]map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(p)
	got, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]float64{}
	for _, f := range got {
		out[f.GetName()] = map[string]float64{}
		for _, m := range f.Metric {
			key := ""
			for _, l := range m.Label {
				key += l.GetName() + "=" + l.GetValue() + " "
			}
			out[f.GetName()][key] = m.GetCounter().GetValue()
			if h := m.Histogram; h != nil {
				out[f.GetName()][key] = float64(h.GetSampleCount())
				out[f.GetName()][key+"quick"] = float64(quick(h))
			}
		}
	}
	return out
}

func quick(h *dto.Histogram) uint64 {
	for _, b := range h.Bucket {
		if b.GetUpperBound() == 1 {
			return b.GetCumulativeCount()
		}
	}
	return 0
}

func TestMetrics(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		pod := podOf(v1.Container{Name: "a", LivenessProbe: every(2, "alive"), ReadinessProbe: every(100, "ready")})
		pod.Name, pod.Namespace, pod.UID = "pod1", "default", "uid1"
		w.answer("ready", 0)
		w.answer("alive", 0)
		p.Sync(pod, seen("a"), View{})
		time.Sleep(4 * time.Second) // alive at 1, 3
		w.answer("alive", 1)
		time.Sleep(2 * time.Second) // and once in vain at 5
		of := "container=a namespace=default pod=pod1 "
		want := map[string]map[string]float64{
			"prober_probe_total": {
				of + "pod_uid=uid1 probe_type=Liveness result=failed ":      1,
				of + "pod_uid=uid1 probe_type=Liveness result=successful ":  2,
				of + "pod_uid=uid1 probe_type=Readiness result=successful ": 1,
			},
			"prober_probe_duration_seconds": {
				of + "probe_type=Liveness ": 3, of + "probe_type=Liveness quick": 3, of + "probe_type=Readiness ": 1,
				of + "probe_type=Readiness quick": 1,
			},
		}
		if diff := cmp.Diff(want, metricsOf(t, p)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		p.Forget(pod.UID)
		if diff := cmp.Diff(map[string]map[string]float64{}, metricsOf(t, p)); diff != "" {
			t.Errorf("of a pod that is gone (-want +got):\n%s", diff)
		}
	})
}

func TestMetricsOfSuccessor(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		first := podOf(v1.Container{Name: "a", ReadinessProbe: every(100, "ready")})
		first.Name, first.Namespace, first.UID = "pod1", "default", "uid1"
		second := first.DeepCopy()
		second.UID = "uid2"
		w.answer("ready", 0)
		p.Sync(first, seen("a"), View{})
		time.Sleep(time.Second)
		p.Sync(second, seen("a"), View{})
		time.Sleep(time.Second)
		p.Forget(first.UID)
		of := "container=a namespace=default pod=pod1 "
		want := map[string]map[string]float64{
			"prober_probe_total": {of + "pod_uid=uid2 probe_type=Readiness result=successful ": 1},
			"prober_probe_duration_seconds": {
				of + "probe_type=Readiness ":      2,
				of + "probe_type=Readiness quick": 2,
			},
		}
		if diff := cmp.Diff(want, metricsOf(t, p)); diff != "" {
			t.Errorf("of a pod whose predecessor is gone (-want +got):\n%s", diff)
		}
		p.Forget(second.UID)
		if diff := cmp.Diff(map[string]map[string]float64{}, metricsOf(t, p)); diff != "" {
			t.Errorf("of pods that are gone (-want +got):\n%s", diff)
		}
	})
}
