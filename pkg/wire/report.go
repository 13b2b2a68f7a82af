package wire

import (
	"encoding/json"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// OpReport is the operation of the message that asks the node to report the status of a pod again. The cloud sends it
// only if Features.Report is agreed. Its resource names the pod, such as "default/pod/web".
const OpReport = "report"

// maxReportRequest is the largest content of such a message in bytes.
const maxReportRequest = 256

// reportRequest is the content of such a message.
type reportRequest struct {
	// UID is the pod's. A pod with the same name and another UID is not reported.
	UID string `json:"uid"`
}

// NewReportRequest makes such a message.
func NewReportRequest(source, pod, uid string) *model.Message {
	content, err := json.Marshal(reportRequest{uid})
	if err != nil { // a string always encodes
		panic(err)
	}
	return model.New(source, model.GroupResource, OpReport, pod, content)
}

// ParseReportRequest returns the UID of the pod whose status is to be reported again.
func ParseReportRequest(m *model.Message) (uid string, err error) {
	content := m.ContentData()
	if len(content) > maxReportRequest {
		return "", fmt.Errorf("request for the status of %s: it has %d bytes, limit %d", m.Route.Resource, len(content),
			maxReportRequest)
	}
	var r reportRequest
	if err := json.Unmarshal(content, &r); err != nil {
		return "", fmt.Errorf("request for the status of %s: %w", m.Route.Resource, err)
	}
	if r.UID == "" {
		return "", fmt.Errorf("request for the status of %s: it names no UID", m.Route.Resource)
	}
	return r.UID, nil
}
