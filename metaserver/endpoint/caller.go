package endpoint

import (
	"encoding/base64"
	"net/http"
	"net/netip"
	"strings"

	"github.com/edgecore-io/edgecore/metaserver/apirequest"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

// kind is what is known of a caller.
type kind int

const (
	// pod has a token of a pod of this device.
	pod kind = iota
	// unknown has another token, which kube-apiserver may know.
	unknown
	// stranger has no token.
	stranger
	// health asks whether the endpoint serves.
	health
)

// caller is the client of a request, and whose limits it has.
type caller struct {
	kind kind
	// account is NAMESPACE/NAME of a service account; for others it is made from their source.
	account string
}

// caller finds out who has sent a request.
func (e *Endpoint) caller(r *http.Request, info *apirequest.Info) caller {
	source := sourceaddr.Parse(r.RemoteAddr)
	if isHealth(r.Method, info) {
		return caller{health, nameOf("probes", source)}
	}
	token := tokenOf(r.Header)
	if token == "" {
		return caller{stranger, nameOf("no token", source)}
	}
	if id, ok := e.opts.Tokens.Of(token); ok && e.opts.Pods.Has(id.Pod) {
		return caller{pod, id.Account.String()}
	}
	return caller{unknown, nameOf("unknown token", source)}
}

// nameOf names those who are limited by their source. No service account has such a name.
func nameOf(what string, source netip.Prefix) string { return what + " from " + source.String() }

// isHealth reports whether a request is a probe that the endpoint answers itself.
func isHealth(method string, info *apirequest.Info) bool {
	if method != http.MethodGet && method != http.MethodHead {
		return false
	}
	switch strings.TrimSuffix(info.Path, "/") {
	case "/livez", "/readyz", "/healthz":
		return true
	}
	return false
}

// webSocketToken is before a token in Sec-WebSocket-Protocol: browsers cannot set other headers.
const webSocketToken = "base64url.bearer.authorization.k8s.io."

// tokenOf returns the bearer token of a request, from where kube-apiserver takes it; empty if there is none.
func tokenOf(h http.Header) string {
	kind, token, _ := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	if token = strings.TrimSpace(token); strings.EqualFold(kind, "bearer") && token != "" {
		return token
	}
	for _, value := range h["Sec-Websocket-Protocol"] {
		for protocol := range strings.SplitSeq(value, ",") {
			encoded, ok := strings.CutPrefix(strings.TrimSpace(protocol), webSocketToken)
			if !ok {
				continue
			}
			if token, err := base64.RawURLEncoding.DecodeString(encoded); err == nil {
				return string(token)
			}
		}
	}
	return ""
}
