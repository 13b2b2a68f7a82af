package adopt

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// notes are an agent's notes: text under RecordKey, or an error.
type notes struct {
	text string
	err  error
}

func (n notes) AgentValue(_ context.Context, key string) (string, error) {
	if key != RecordKey {
		return "", errors.New("another key: " + key)
	}
	return n.text, n.err
}

func TestFromStore(t *testing.T) {
	text, err := (&Record{Version: recordVersion, Containers: map[string]Container{
		"c1": {Carries: "1a", Means: "2b"},
	}}).Text()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		notes notes
		found bool
		err   string
	}{
		"a record":        {notes{text: text}, true, ""},
		"no record":       {notes{err: errors.New("not found")}, false, ""},
		"not a record":    {notes{text: "x"}, false, "record of the migration"},
		"a newer version": {notes{text: `{"version":99}`}, false, "it has version 99"},
		"not a hash":      {notes{text: strings.Replace(text, "1a", "zz", 1)}, false, "container c1"},
	} {
		r, err := FromStore(t.Context(), c.notes)
		if (r != nil) != c.found || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: FromStore = %+v, %v; want a record: %v, error %q", name, r, err, c.found, c.err)
		}
		if c.found && r != nil && r.Containers["c1"].Means != "2b" {
			t.Errorf("%s: record = %+v, want container c1 with 2b", name, r)
		}
	}
}
