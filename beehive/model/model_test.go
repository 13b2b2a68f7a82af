package model

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// TestRecordedMessages: what was recorded between an upstream edge and cloud comes through unchanged.
func TestRecordedMessages(t *testing.T) {
	f, err := os.Open("testdata/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		var line struct {
			Message json.RawMessage `json:"message"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		var m Message
		if err := json.Unmarshal(line.Message, &m); err != nil {
			t.Fatal(err)
		}
		back, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var want, got any
		if err := errors.Join(json.Unmarshal(line.Message, &want), json.Unmarshal(back, &got)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("message %d (-want +got):\n%s", n, diff)
		}
		n++
	}
	if n < 10 {
		t.Errorf("%d recorded messages, want 10 or more", n)
	}
}

func TestContentData(t *testing.T) {
	for content, want := range map[string]string{
		`{"a":1}`:       `{"a":1}`,
		`"{\"a\":1}"`:   `{"a":1}`,
		`"OK"`:          `OK`,
		`null`:          `null`,
		`"\u00e9\n\"x"`: "é\n\"x",
		`"broken`:       `"broken`,
	} {
		m := Message{Content: json.RawMessage(content)}
		if got := string(m.ContentData()); got != want {
			t.Errorf("%s: %q, want %q", content, got, want)
		}
	}
}

func TestResponses(t *testing.T) {
	req := New("edgecontroller", GroupResource, OpInsert, "default/pod/a", json.RawMessage(`{}`))
	ack := req.Respond(OK)
	if ack.Header.ParentID != req.Header.ID || ack.Header.ID == req.Header.ID || ack.Route.Operation != OpResponse ||
		ack.Route.Source != "edgecontroller" || ack.Route.Resource != "default/pod/a" || !ack.IsResponse() ||
		req.IsResponse() {
		t.Errorf("ack %+v, want a response of edgecontroller to %s", ack, req.Header.ID)
	}
	bad := req.RespondError(ModuleMetaManager, errors.New(`disk "full"`))
	if bad.Route.Operation != OpError || bad.Route.Source != ModuleMetaManager ||
		string(bad.ContentData()) != `disk "full"` {
		t.Errorf("error answer %+v, want one of %s with %q", bad, ModuleMetaManager, `disk "full"`)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"header":{"msg_id":"a","timestamp":1},"route":{"resource":"a/b/c"},"content":"x"}`))
	for _, text := range membound.JSON(`{"content":`, `}`, 64<<10) {
		f.Add([]byte(text))
	}
	f.Add([]byte(membound.Repeat(`{`, `"content":"xxxxxxxx"`, `,`, `}`, 64<<10)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m Message
		var err error
		// The content is copied as it is, and again without its quotes.
		membound.Check(t, membound.Linear(len(data), 16), func() {
			if err = json.Unmarshal(data, &m); err == nil {
				m.ContentData()
			}
		})
		if err != nil {
			return
		}
		if _, err := json.Marshal(m); err != nil {
			t.Errorf("decoded, but does not encode: %v", err)
		}
	})
}
