package stats

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// families reads what a handler answers as Prometheus does.
func families(t *testing.T, h http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s, want OK", w.Code, w.Body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	got, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// samples are the values of a metric by their labels, without the ones that every sample has.
func samples(f *dto.MetricFamily, labels ...string) map[string]float64 {
	out := map[string]float64{}
	for _, m := range f.GetMetric() {
		var key []string
		for _, l := range m.Label {
			if slices.Contains(labels, l.GetName()) {
				key = append(key, l.GetValue())
			}
		}
		out[strings.Join(key, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return out
}

func TestResourceMetrics(t *testing.T) {
	m, s := newMachine(t)
	m.pod("a")
	m.running("a", "1500000")
	// Its successor is there before it has gone.
	before := m.pod("b")
	before.DeletionTimestamp = &metav1.Time{}
	m.running("b", "9000000")
	after := m.pod("b")
	after.UID = "uid-b2"
	after.Status.ContainerStatuses[0].ContainerID = "containerd://b2-id"
	m.running("b2", "2000000")
	got := families(t, MetricsHandler(s.Resource()))
	for name, want := range map[string]map[string]float64{
		"node_cpu_usage_seconds_total":       {"": 1},
		"node_memory_working_set_bytes":      {"": 500 << 10},
		"node_swap_usage_bytes":              {"": 30 << 10},
		"container_cpu_usage_seconds_total":  {"main default a": 1.5, "main default b": 2},
		"container_memory_working_set_bytes": {"main default a": 3000, "main default b": 3000},
		"container_swap_usage_bytes":         {"main default a": 3, "main default b": 3},
		"container_start_time_seconds":       {"main default a": 1700000100, "main default b": 1700000100},
		"pod_cpu_usage_seconds_total":        {"default a": 1.5, "default b": 2},
		"pod_memory_working_set_bytes":       {"default a": 4000, "default b": 4000},
		"pod_swap_usage_bytes":               {"default a": 3, "default b": 3},
		"resource_scrape_error":              {"": 0},
	} {
		if diff := cmp.Diff(want, samples(got[name], "container", "namespace", "pod")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// metrics-server takes no sample whose time it does not know.
	for _, name := range []string{
		"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "node_cpu_usage_seconds_total",
	} {
		if got[name].GetMetric()[0].TimestampMs == nil {
			t.Errorf("%s: TimestampMs = nil, want a time", name)
		}
	}
	if typ := got["container_cpu_usage_seconds_total"].GetType(); typ != dto.MetricType_COUNTER {
		t.Errorf("the CPU is a %s, want MetricType_COUNTER", typ)
	}
}

func TestResourceMetricsSayThatTheyFailed(t *testing.T) {
	m, s := newMachine(t)
	m.write("proc/meminfo", "")
	got := families(t, MetricsHandler(s.Resource()))
	if diff := cmp.Diff(map[string]float64{"": 1}, samples(got["resource_scrape_error"])); diff != "" || len(got) != 1 {
		t.Errorf("%d families, want 1; resource_scrape_error (-want +got):\n%s", len(got), diff)
	}
}

func TestCadvisorMetrics(t *testing.T) {
	m, s := newMachine(t)
	m.pod("a")
	m.running("a", "1500000")
	m.uses("kubepods", "2500000", "9000", "0")
	m.write("cgroup/kubepods/poduid-a/pause/cgroup.procs", "17\n")
	m.write("proc/17/net/dev", netDev)
	m.write("cgroup/kubepods/poduid-a/a-id/cpu.max", "50000 100000\n")
	m.write("cgroup/kubepods/poduid-a/a-id/io.stat", "8:0 rbytes=10 wbytes=20 rios=3 wios=4\n")
	m.write("cgroup/kubepods/poduid-a/a-id/memory.events", "low 0\nmax 7\noom 4\noom_kill 3\n")
	m.write("cgroup/kubepods/poduid-a/a-id/memory.peak", "4500\n")
	m.write("cgroup/kubepods/poduid-a/a-id/memory.swap.max", "max\n")
	m.write("cgroup/kubepods/poduid-a/a-id/cpu.weight", "20\n")
	m.write("cgroup/kubepods/poduid-a/a-id/pids.max", "100\n")
	m.write("cgroup/kubepods/poduid-a/a-id/cgroup.procs", "18\n19\n")
	m.write("proc/partitions", "major minor  #blocks  name\n\n   8        0   1 sda\n")
	got := families(t, MetricsHandler(s.Cadvisor()))
	pod, box := " /kubepods/poduid-a   default a", "main /kubepods/poduid-a/a-id demo:1 a-id default a"
	for name, want := range map[string]map[string]float64{
		"container_cpu_usage_seconds_total": {" /    ": 1, " /kubepods    ": 2.5, pod: 1.5, box: 1.5},
		"container_memory_working_set_bytes": {" /    ": 500 << 10, " /kubepods    ": 9000, pod: 4000,
			box: 3000},
		"container_spec_memory_limit_bytes":         {pod: 0, box: 10000},
		"container_cpu_cfs_throttled_seconds_total": {box: .003},
		"container_cpu_cfs_throttled_periods_total": {box: 2},
		"container_memory_failcnt":                  {box: 7},
		"container_memory_max_usage_bytes":          {box: 4500},
		"container_spec_memory_swap_limit_bytes":    {pod: 0, box: 0},
		"container_spec_cpu_shares":                 {box: 500},
		"container_threads_max":                     {pod: 0, box: 100},
		"container_processes":                       {box: 2},
		"container_fs_reads_total":                  {box: 3},
		"container_fs_writes_total":                 {box: 4},
		"container_cpu_user_seconds_total":          {pod: 1e-6, box: 1e-6},
		"container_scrape_error":                    {"": 0},
		"machine_scrape_error":                      {"": 0},
		"cadvisor_version_info":                     {"": 1},
		"container_spec_cpu_quota":                  {box: 50000},
		"container_oom_events_total":                {box: 3},
		"container_fs_writes_bytes_total":           {box: 20},
		"container_threads":                         {" /    ": 135, " /kubepods    ": 4, pod: 4, box: 4},
		"container_start_time_seconds":              {box: 1700000100},
		"machine_cpu_cores":                         {"": 2},
		"machine_memory_bytes":                      {"": 1000 << 10},
		"container_memory_rss": {" /    ": 300 << 10, " /kubepods    ": 10, pod: 10,
			box: 10},
		"container_cpu_cfs_periods_total":          {box: 5},
		"container_network_receive_errors_total":   {" /    ": 3, pod: 3},
		"container_network_transmit_packets_total": {" /    ": 10, pod: 10},
		"container_network_receive_bytes_total":    {" /    ": 1, pod: 1},
		"container_network_transmit_bytes_total":   {" /    ": 9, pod: 9},
		"container_network_receive_packets_total":  {" /    ": 2, pod: 2},
		"container_spec_cpu_period":                {box: 100000},
		"container_fs_reads_bytes_total":           {box: 10},
		"container_memory_usage_bytes": {" /    ": 600 << 10, " /kubepods    ": 9000, pod: 5000,
			box: 4000},
		"container_memory_failures_total":         {" /kubepods    ": 1, pod: 1, box: 1},
		"container_network_transmit_errors_total": {" /    ": 11, pod: 11},
		"container_memory_cache": {" /    ": 200 << 10, " /kubepods    ": 20, pod: 20,
			box: 20},
		"container_network_receive_packets_dropped_total": {" /    ": 4, pod: 4},
	} {
		if diff := cmp.Diff(want, samples(got[name], cadvisorLabels...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// Dashboards select by the device, and by the machine.
	if diff := cmp.Diff(map[string]float64{"main /dev/sda": 10},
		samples(got["container_fs_reads_bytes_total"], "container", "device")); diff != "" {
		t.Errorf("container_fs_reads_bytes_total (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"boot-1 machine-1 system-1": 2},
		samples(got["machine_cpu_cores"], machineLabels...)); diff != "" {
		t.Errorf("machine_cpu_cores (-want +got):\n%s", diff)
	}
}

func TestSummaryHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMachine(t)
		m.pod("a")
		m.running("a", "1500000")
		ask := func(query string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			SummaryHandler(s).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stats/summary"+query, nil))
			return w
		}
		for query, disk := range map[string]bool{
			"": true, "?only_cpu_and_memory=true": false, "?only_cpu_and_memory=false": true,
		} {
			w := ask(query)
			var got statsapi.Summary
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK ||
				w.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("%q: %d, %v; want no error, OK, \"application/json\"", query, w.Code, err)
			}
			if (got.Node.Fs != nil) != disk || len(got.Pods) != 1 || *got.Pods[0].Memory.WorkingSetBytes != 4000 {
				t.Errorf("%q: %+v, want disks: %v, one pod with 4000 bytes", query, got, disk)
			}
		}
		if w := ask("?only_cpu_and_memory=often"); w.Code != http.StatusBadRequest ||
			!strings.Contains(w.Body.String(), `"often": want true or false`) {
			t.Errorf("%d %s, want 400 with what is allowed", w.Code, w.Body)
		}
		m.write("proc/meminfo", "")
		s.node.forget()
		if w := ask(""); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "meminfo") {
			t.Errorf("%d %s, want InternalServerError, \"meminfo\"", w.Code, w.Body)
		}
	})
}

// A runtime that is down costs the figures that only it has.
func TestSummaryWithoutRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := newMachine(t)
		m.pod("a")
		m.running("a", "1500000")
		m.err = errors.New("connection refused")
		got, err := s.Summary(t.Context(), false)
		if err != nil || got.Node.Runtime != nil || *got.Pods[0].Memory.WorkingSetBytes != 4000 ||
			got.Pods[0].EphemeralStorage == nil {
			t.Errorf("Summary() = %+v, %v; want the pod's measures without those of the runtime", got, err)
		}
	})
}
