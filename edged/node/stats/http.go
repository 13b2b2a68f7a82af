package stats

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
)

// SummaryHandler answers /stats/summary; ?only_cpu_and_memory=true leaves the disk and the network out.
func SummaryHandler(p Provider) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		only := false
		if asked := r.URL.Query().Get("only_cpu_and_memory"); asked != "" {
			var err error
			if only, err = strconv.ParseBool(asked); err != nil {
				http.Error(w, "only_cpu_and_memory="+strconv.Quote(asked)+": want true or false", http.StatusBadRequest)
				return
			}
		}
		got, err := p.Summary(r.Context(), only)
		if err != nil {
			http.Error(w, "stats of the node: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(got); err != nil {
			klog.V(4).InfoS("Answer not written", "err", err)
		}
	})
}

// MetricsHandler serves collectors as Prometheus' text.
func MetricsHandler(collectors ...prometheus.Collector) http.Handler {
	r := prometheus.NewRegistry()
	for _, c := range collectors {
		r.MustRegister(c)
	}
	// One series that cannot be told does not hide the others.
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError})
}
