package edged

import (
	"context"
	"net/http"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/streaming"
)

// streamNode is what package streaming asks.
type streamNode struct{ *Edged }

func (n streamNode) Observed(uid types.UID) *observed.Pod { return n.pleg.Get(uid) }

func (n streamNode) Refresh(ctx context.Context, uid types.UID) (*observed.Pod, error) {
	return n.pleg.Refresh(ctx, uid)
}

func (n streamNode) LogDir(pod *v1.Pod) string { return n.runtime.LogDir(pod) }

// newStreams makes what serves logs and streams of pods; all of it ends with ctx.
func (e *Edged) newStreams(ctx context.Context) *streaming.Server {
	return streaming.New(ctx, streaming.Options{Node: streamNode{e}, Runtime: e.client, IdleTimeout: e.opts.StreamIdle})
}

// endStreams waits until the streams have ended, which ctx has them do.
func (e *Edged) endStreams(ctx context.Context) error {
	<-ctx.Done()
	e.streams.Wait()
	return nil
}

// streamRoutes are the kubelet's paths for logs and streams. WebSocket clients ask with GET for what acts in a
// container, so all but logs is "create".
func (e *Edged) streamRoutes() []server.Route {
	const at, of = "{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"
	both, post := []string{http.MethodGet, http.MethodPost}, []string{http.MethodPost}
	route := func(pattern string, h http.Handler, methods []string) server.Route {
		return server.Route{Pattern: pattern, Handler: h, Methods: methods, Verb: "create", Stream: true, Debugging: true}
	}
	s := e.streams
	return []server.Route{
		{Pattern: "/containerLogs/" + at, Handler: s.Logs(), Stream: true, Debugging: true},
		route("/exec/"+at, s.Exec(), both), route("/exec/"+of, s.Exec(), both),
		route("/attach/"+at, s.Attach(), both), route("/attach/"+of, s.Attach(), both),
		route("/portForward/{namespace}/{pod}", s.PortForward(), both), route("/portForward/{namespace}/{pod}/{uid}", s.PortForward(), both),
		route("/run/"+at, s.Run(), post), route("/run/"+of, s.Run(), post),
	}
}
