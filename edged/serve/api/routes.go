package api

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/streaming"
)

// systemLogDir is where the node's logs are.
const systemLogDir = "/var/log"

// Routes are those of the kubelet's API that belong to no part of edged.
func Routes(s *Settings, c *Containers) []server.Route {
	routes := []server.Route{server.RunningPods(c.RunningPods), server.Checkpoint(c.Checkpoint)}
	if s.Config != nil {
		routes = append(routes, server.Configz(s.Config))
	}
	if s.SystemLogs {
		routes = append(routes, server.SystemLogs(systemLogDir))
	}
	if s.Profiling {
		routes = append(routes, server.Profiling()...)
	}
	if s.Flags {
		routes = append(routes, server.LogLevel())
	}
	return routes
}

// StreamRoutes are the kubelet's paths for logs and streams. WebSocket clients ask with GET for what acts in a
// container, so all but logs is "create".
func StreamRoutes(s *streaming.Server) []server.Route {
	const at, of = "{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"
	both, post := []string{http.MethodGet, http.MethodPost}, []string{http.MethodPost}
	route := func(pattern string, h http.Handler, methods []string) server.Route {
		return server.Route{
			Pattern:   pattern,
			Handler:   h,
			Methods:   methods,
			Verb:      "create",
			Stream:    true,
			Debugging: true,
		}
	}
	return []server.Route{
		{Pattern: "/containerLogs/" + at, Handler: s.Logs(), Stream: true, Debugging: true},
		route("/exec/"+at, s.Exec(), both),
		route("/exec/"+of, s.Exec(), both),
		route("/attach/"+at, s.Attach(), both),
		route("/attach/"+of, s.Attach(), both),
		route("/portForward/{namespace}/{pod}", s.PortForward(), both),
		route("/portForward/{namespace}/{pod}/{uid}", s.PortForward(), both),
		route("/run/"+at, s.Run(), post),
		route("/run/"+of, s.Run(), post),
	}
}

// StatsRoutes are what the ports tell of usage; probes are the metrics of probes. Who may read a resource of the node
// may read its figures.
func StatsRoutes(s *stats.Stats, probes prometheus.Collector) []server.Route {
	summary := stats.SummaryHandler(s)
	metrics := func(pattern string, c prometheus.Collector) server.Route {
		return server.Route{Pattern: pattern, Handler: stats.MetricsHandler(c), ReadOnly: true, Resource: "metrics"}
	}
	return []server.Route{
		{Pattern: "/stats/summary", Handler: summary, ReadOnly: true, Resource: "stats"},
		{Pattern: "/stats/summary/{$}", Handler: summary, ReadOnly: true, Resource: "stats"},
		metrics("/metrics/resource", s.Resource()),
		metrics("/metrics/cadvisor", s.Cadvisor()),
		metrics("/metrics/probes", probes),
	}
}
