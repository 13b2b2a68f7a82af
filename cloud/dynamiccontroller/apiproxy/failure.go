package apiproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// status returns an error in kube-apiserver's form.
func status(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  message,
		Reason:   reason,
		Code:     int32(code),
	}
}

// check returns the answer to a request that is not forwarded; nil: it is.
func check(r *http.Request) *metav1.Status {
	switch {
	case !hasToken(r.Header.Get("Authorization")): // kube-apiserver would take it for anonymous
		return status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case r.Method == http.MethodConnect:
		return status(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"the method CONNECT is not supported")
	case r.ContentLength > bodyBytes:
		return tooLarge()
	}
	return nil
}

// hasToken reports whether an Authorization is a bearer token, as kube-apiserver reads it.
func hasToken(authorization string) bool {
	scheme, token, _ := strings.Cut(strings.TrimSpace(authorization), " ")
	return strings.EqualFold(scheme, "bearer") && strings.TrimSpace(token) != ""
}

func tooFast(node string) *metav1.Status {
	return status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, fmt.Sprintf("node %s sends more "+
		"than %d requests a second to the Kubernetes API: try again later", node, nodeRate))
}

func tooLarge() *metav1.Status {
	return status(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
		fmt.Sprintf("the body of the request is larger than the limit, %d bytes", bodyBytes))
}

func tooManyUpgrades(node string) *metav1.Status {
	return status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, fmt.Sprintf("node %s has %d "+
		"connections for exec, attach, port-forward and the like, which is the limit, or all nodes have %d: close "+
		"one, or try again later", node, nodeUpgrades, upgrades))
}

// writeStatus answers with an error. retry is after how many seconds the client may try again; 0 is not said.
func writeStatus(w http.ResponseWriter, s *metav1.Status, retry int32) {
	if retry > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: retry}
		w.Header().Set("Retry-After", strconv.Itoa(int(retry)))
	}
	body, err := json.Marshal(s)
	if err != nil { // it has only strings and numbers
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(int(s.Code))
	_, _ = w.Write(body) // an error means that the client is gone
}

// sentKey is the key, in the context of a request, of whether its header was sent to kube-apiserver.
type sentKey struct{}

// traceSent returns a context with which a request notes that its header was sent.
func traceSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := &atomic.Bool{}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}), sent
}

// answerFailure answers a request to which kube-apiserver gives no answer.
func answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, or cloudcore stops
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		writeStatus(w, tooLarge(), 0)
		return
	}
	klog.V(2).InfoS("kube-apiserver did not answer a request of a node's client", "node", nodeOf(r.Context()),
		"method", r.Method, "err", err)
	sent, _ := r.Context().Value(sentKey{}).(*atomic.Bool)
	s, retry := failure(r.Method, sent != nil && sent.Load())
	writeStatus(w, s, retry)
}

// failure returns the answer to a request that kube-apiserver did not answer, and after how many seconds the client may
// repeat it. sent: kube-apiserver may have carried it out.
func failure(method string, sent bool) (s *metav1.Status, retry int32) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		sent = false
	}
	if sent {
		return status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the connection from cloudcore to "+
			"kube-apiserver was lost before the answer came: the change may have been made or not; read the object "+
			"before trying again"), 0
	}
	return status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"cloudcore cannot reach kube-apiserver now; try again"), 1
}
