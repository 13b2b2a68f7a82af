// Package answer reads what the cloud answers to requests and reports: whether it failed, and whether the same may
// succeed another time.
package answer

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/jsonbound"
)

// ElementsMax is how many elements an answer may have to be decoded.
const ElementsMax = 200_000

// Failure returns what an answer says went wrong, or nil: on top where an object was asked for, under Err where
// something was to be done. An Err without words is a failure, too.
func Failure(data []byte) *metav1.Status {
	var answer struct {
		ErrStatus *metav1.Status `json:"ErrStatus"`
		Err       *struct {
			ErrStatus *metav1.Status `json:"ErrStatus"`
		} `json:"Err"`
	}
	switch {
	case jsonbound.HasMore(data, ElementsMax):
		return &metav1.Status{Message: "the answer is too large to be read"}
	case json.Unmarshal(data, &answer) != nil: // a string, or nothing
		return nil
	case answer.ErrStatus != nil:
		return answer.ErrStatus
	case answer.Err == nil:
		return nil
	case answer.Err.ErrStatus == nil:
		return &metav1.Status{Message: "the cloud failed and gave no reason"}
	}
	return answer.Err.ErrStatus
}

// Again reports whether the same request or report may be taken another time.
func Again(failure *metav1.Status) bool {
	switch {
	case failure.Code == http.StatusTooManyRequests, failure.Code == http.StatusRequestTimeout,
		failure.Code == http.StatusUnauthorized:
		return true
	}
	return failure.Code < 400 || failure.Code >= 500
}
