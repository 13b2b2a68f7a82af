package adopted

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// notes are an agent's notes: text under Key, or an error.
type notes struct {
	text string
	err  error
}

func (n notes) AgentValue(_ context.Context, key string) (string, error) {
	if key != Key {
		return "", errors.New("another key: " + key)
	}
	return n.text, n.err
}

func TestFromStore(t *testing.T) {
	text, err := (&Record{Version: Version, Containers: map[string]Container{
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

func FuzzParse(f *testing.F) {
	f.Add(`{"version":1,"at":"2026-11-21T12:00:00Z","containers":{"c1":{"carries":"a","means":"b"}},"static":{"x":"y"}}`)
	f.Add(`{"version":2}`)
	for _, text := range membound.JSON(`{"version":1,"containers":{"a":`, `}}`, 64<<10) {
		f.Add(text)
	}
	f.Add(membound.Repeat(`{"version":1,"static":{`, `"":""`, `,`, `}}`, 64<<10))
	f.Fuzz(func(t *testing.T, text string) {
		var r *Record
		var err error
		// An entry of a map has 5 bytes or more; the maps double while they grow.
		membound.Check(t, membound.Linear(len(text), 256), func() { r, err = Parse(text) })
		if err != nil {
			return
		}
		for id, c := range r.Containers {
			carries, err := parseHash(c.Carries)
			if err != nil {
				t.Fatal(err)
			}
			r.Hash(id, carries)
		}
	})
}
