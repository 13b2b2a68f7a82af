package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
)

func TestReportRequest(t *testing.T) {
	m := NewReportRequest("edgecontroller", "a/pod/p", "u1")
	if m.Route.Operation != OpReport || m.Route.Resource != "a/pod/p" || m.Route.Group != model.GroupResource ||
		m.IsResponse() {
		t.Errorf("route = %+v, parent %q, want a message about a/pod/p in the group resource", m.Route,
			m.Header.ParentID)
	}
	if uid, err := ParseReportRequest(m); uid != "u1" || err != nil {
		t.Errorf("ParseReportRequest = %q, %v, want u1", uid, err)
	}
	for content, want := range map[string]string{
		`{}`:   "it names no UID",
		`null`: "it names no UID",
		`"x"`:  "invalid character",
		`[]`:   "cannot unmarshal",
		`{"uid":"` + strings.Repeat("x", maxReportRequest) + `"}`: "limit 256",
	} {
		m.Content = json.RawMessage(content)
		if uid, err := ParseReportRequest(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseReportRequest of %.20s = %q, %v, want %q", content, uid, err, want)
		}
	}
}
