package server

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/pkg/auth"
)

// Route is one thing that the node's ports serve. Both ports are made of one list of them.
type Route struct {
	// Pattern is one of http.ServeMux, without a method and a host: "/stats/summary",
	// "/exec/{namespace}/{pod}/{container}". The longer form of a path ends in "/" or in "{rest...}".
	Pattern string
	Handler http.Handler
	// Methods are those that the authenticated port takes; none are GET and HEAD. The read-only port takes no other.
	Methods []string
	// ReadOnly: the read-only port has it, too. Without LocalOnly the authenticated one has all routes.
	ReadOnly bool
	// LocalOnly: the authenticated port does not have it.
	LocalOnly bool
	// Resource is the subresource of nodes that the authorizer is asked about: "log", "stats", "metrics", "pods",
	// "healthz", "configz", "checkpoint" ...; "" is "proxy", which stands for all that have no name of their own.
	Resource string
	// OrProxy: who may use nodes/proxy may use it, too, as before Resource had a name of its own.
	OrProxy bool
	// Verb is what the authorizer is asked about; "" goes by the method: get, create, update, patch or delete. What
	// acts in a container is "create", though WebSocket clients ask for it with GET.
	Verb string
	// Stream: answers may take as long as they take, and connections may be upgraded. Others may take as long as the
	// client goes on reading: it has 30 s for each piece.
	Stream bool
	// Debugging: it is served only where enableDebuggingHandlers is set.
	Debugging bool
}

// methods are those that a route takes.
func (r *Route) methods() []string {
	if len(r.Methods) > 0 {
		return r.Methods
	}
	return []string{http.MethodGet, http.MethodHead}
}

// takes reports whether a route takes a method.
func (r *Route) takes(method string) bool { return slices.Contains(r.methods(), method) }

// verb is what is asked of the authorizer for a request.
func (r *Route) verb(method string) string {
	if r.Verb != "" {
		return r.Verb
	}
	return auth.Verb(method)
}

// resources are the subresources of nodes; the caller needs access to one of them.
func (r *Route) resources() []string {
	switch {
	case r.Resource == "" || r.Resource == proxy:
		return []string{proxy}
	case r.OrProxy:
		return []string{r.Resource, proxy}
	}
	return []string{r.Resource}
}

const proxy = "proxy"

// served is what a route does once a request may have it.
func (r *Route) served(w http.ResponseWriter, req *http.Request) {
	if !r.takes(req.Method) {
		w.Header().Set("Allow", strings.Join(r.methods(), ", "))
		http.Error(w, "method "+req.Method+" is not one of "+strings.Join(r.methods(), ", "),
			http.StatusMethodNotAllowed)
		return
	}
	if r.Stream {
		c := http.NewResponseController(w)
		_ = c.SetWriteDeadline(time.Time{}) // a writer without deadlines, in a test
		_ = c.SetReadDeadline(time.Time{})
		if p, ok := w.(*stallGuard); ok {
			w = p.ResponseWriter
		}
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	r.Handler.ServeHTTP(w, req)
}

// patiently serves answers piece by piece; see stallGuard.
func patiently(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&stallGuard{ResponseWriter: w, control: http.NewResponseController(w)}, r)
	})
}

// stallGuard writes an answer in pieces, each of which has a time of its own: a long answer over a slow link arrives as
// a whole, and a client that does not read is cut off.
type stallGuard struct {
	http.ResponseWriter
	control *http.ResponseController
}

// piece is how much of an answer a client has to take within writeTimeout, in bytes.
const piece = 4 << 10

// Write implements http.ResponseWriter.
func (p *stallGuard) Write(data []byte) (written int, err error) {
	for {
		_ = p.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer without deadlines, in a test
		n, err := p.ResponseWriter.Write(data[:min(len(data), piece)])
		written += n
		if data = data[n:]; err != nil || len(data) == 0 {
			return written, err
		}
	}
}

// Unwrap gives http.ResponseController what is below.
func (p *stallGuard) Unwrap() http.ResponseWriter { return p.ResponseWriter }
