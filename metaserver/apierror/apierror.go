// Package apierror answers requests with errors in kube-apiserver's form (metav1.Status as JSON), so that clients treat
// them as they treat those of kube-apiserver.
package apierror

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metaserver/apirequest"
)

// When a client may try again.
const (
	offlineRetry = 5 * time.Second
	failedRetry  = time.Second
)

// Unauthorized is 401, with the words of kube-apiserver.
func Unauthorized() *metav1.Status { return status(apierrors.NewUnauthorized("Unauthorized")) }

// TooLarge is 413 for a body above a limit.
func TooLarge(limit int64) *metav1.Status {
	return status(apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit)))
}

// TooManyRequests is 429: the client may try again after a time, which is rounded up to seconds.
func TooManyRequests(why string, after time.Duration) *metav1.Status {
	return status(apierrors.NewTooManyRequests(why, seconds(after)))
}

// Offline is 503 for a request while there is no link. A zero since is a device that has not had one since its start.
func Offline(info *apirequest.Info, since time.Time) *metav1.Status {
	when := "since it started"
	if !since.IsZero() {
		when = "since " + since.UTC().Format(time.RFC3339)
	}
	verb := "changed"
	if info.IsRead() {
		verb = "read"
	}
	return unavailable(fmt.Sprintf("this device has no connection to its cluster %s; %s cannot be %s now", when, info,
		verb), offlineRetry)
}

// Failed is 503 for a request that changed nothing: the client may send it again.
func Failed(why string) *metav1.Status { return unavailable(why, failedRetry) }

// Lost is 504 for a write that was sent and whose answer was lost. It names no time to try again: clients repeat what
// does, and the write may have been carried out.
func Lost(info *apirequest.Info) *metav1.Status {
	return status(apierrors.NewTimeoutError(fmt.Sprintf("the connection to the cluster was lost before it answered; "+
		"%s may have been changed: read it before you try again", info), 0))
}

func unavailable(why string, after time.Duration) *metav1.Status {
	s := status(apierrors.NewServiceUnavailable(why))
	s.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(seconds(after))}
	return s
}

// status returns the Status of an error as kube-apiserver encodes it.
func status(err *apierrors.StatusError) *metav1.Status {
	s := err.Status()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &s
}

func seconds(d time.Duration) int { return max(1, int((d+time.Second-1)/time.Second)) }

// answerTime is how long a client may take for an answer that the device makes itself.
const answerTime = 10 * time.Second

// Limit bounds how long the client of a request may take for a short answer, and for the body that nobody reads. Call
// it before the answer: net/http keeps a request until both are done, also after its handler has returned, when nothing
// counts it any more.
func Limit(w http.ResponseWriter, r *http.Request) {
	control, end := http.NewResponseController(w), time.Now().Add(answerTime)
	switch {
	case r.ProtoMajor >= 2:
		_ = control.SetWriteDeadline(end) // of this stream; a writer that knows none is a test's
	case r.ContentLength != 0:
		_ = control.SetReadDeadline(end) // of this request: the server sets another one for the next
	}
}

// Write answers a request, within the bounds of Limit. It sets Retry-After if the status has a time to try again.
func Write(w http.ResponseWriter, r *http.Request, s *metav1.Status) {
	Limit(w, r)
	body, err := json.Marshal(s)
	if err != nil { // a Status has nothing that JSON cannot hold
		http.Error(w, s.Message, int(s.Code))
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-cache, private")
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	w.WriteHeader(int(s.Code))
	if _, err := w.Write(body); err != nil {
		klog.V(4).InfoS("Error not sent to a client of the API endpoint", "code", s.Code, "err", err)
	}
}
