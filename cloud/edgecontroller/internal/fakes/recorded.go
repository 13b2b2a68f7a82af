package fakes

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// Recorded reads the messages that were recorded between an upstream edge and cloud: requests in order, answers by id.
func Recorded(t testing.TB, file string) (requests []*model.Message, answers map[string]*model.Message) {
	t.Helper()
	answers = map[string]*model.Message{}
	EachRecorded(t, file, func(dir string, m *model.Message) {
		switch {
		case dir == "edge->cloud" && m.Route.Source == "edged":
			requests = append(requests, m)
		case dir == "cloud->edge" && m.IsResponse():
			answers[m.Header.ParentID] = m
		}
	})
	return requests, answers
}

// EachRecorded calls do for each message in a file of recorded messages.
func EachRecorded(t testing.TB, file string, do func(dir string, m *model.Message)) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Dir     string         `json:"dir"`
			Message *model.Message `json:"message"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		do(line.Dir, line.Message)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// Normal is content without what is not compared: managedFields, which no edge reads, and null and empty fields, which
// versions of the API types write or leave out.
func Normal(t *testing.T, content json.RawMessage) any {
	t.Helper()
	var out any
	if err := json.Unmarshal(content, &out); err != nil {
		t.Fatal(err)
	}
	top, _ := out.(map[string]any)
	_, err := top["Err"]
	_, object := top["Object"]
	out = prune(out)
	if top, is := out.(map[string]any); is {
		top["has Object and Err"] = err && object
	}
	return out
}

func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		delete(v, "managedFields")
		for name, part := range v {
			if v[name] = prune(part); v[name] == nil {
				delete(v, name)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return value
}
