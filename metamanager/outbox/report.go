package outbox

import (
	"encoding/json"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Report is what edged reports on an object: the status of a pod, its end, or an event. Read makes it, so that the
// message is decoded once.
type Report struct {
	// Object names what it is about.
	Object resource.Key
	// UID is that of the pod that it is about, or empty where it is about something else.
	UID string
	// Content is what it says. A patch travels in a string, which this is not.
	Content []byte
	// Valid: Content is JSON.
	Valid bool

	msg *model.Message
}

// Read reads a message that reports on an object.
func Read(object resource.Key, msg *model.Message) *Report {
	r := &Report{Object: object, Content: msg.ContentData(), msg: msg}
	fits := true
	switch {
	case object.Type == resource.TypePodPatch && msg.Route.Operation == model.OpPatch:
		var patch struct {
			Metadata struct {
				UID string `json:"uid"`
			} `json:"metadata"`
		}
		if fits = json.Unmarshal(r.Content, &patch) == nil; fits {
			r.UID = patch.Metadata.UID
		}
	case object.Type == resource.TypePod && msg.Route.Operation == model.OpDelete:
		var options struct {
			Preconditions struct {
				UID string `json:"uid"`
			} `json:"preconditions"`
		}
		if fits = json.Unmarshal(r.Content, &options) == nil; fits {
			r.UID = options.Preconditions.UID
		}
	default:
		fits = false
	}
	r.Valid = fits || json.Valid(r.Content)
	return r
}

// key returns the report's key in the outbox.
func (r *Report) key() string { return keyOf(r.msg.Route.Operation, r.UID, r.msg.Route.Resource) }
