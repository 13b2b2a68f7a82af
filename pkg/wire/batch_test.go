package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func event(i int, content string) *model.Message {
	return model.New(model.ModuleEdged, model.GroupMeta, model.OpInsert, fmt.Sprintf("default/event/e%d", i),
		json.RawMessage(content))
}

func events(n int, content string) []*model.Message {
	out := make([]*model.Message, n)
	for i := range out {
		out[i] = event(i, content)
	}
	return out
}

// sizes are how many messages each of some carries.
func sizes(t *testing.T, packed []Packed) []int {
	var out []int
	for _, p := range packed {
		if IsBatch(p.Message) && len(p.Content) > BatchBytes+BatchMax+1 {
			t.Errorf("a batch of %d bytes, limit %d and commas", len(p.Content), BatchBytes)
		}
		if !IsBatch(p.Message) && (len(p.Carried) != 1 || p.Carried[0] != p.Message) {
			t.Errorf("a message that is not a batch carries %d others", len(p.Carried))
		}
		out = append(out, len(p.Carried))
	}
	return out
}

// TestPack: what is packed is unpacked in its order and unchanged, within the limits; what fits nowhere goes alone.
func TestPack(t *testing.T) {
	large := `"` + strings.Repeat("<", BatchBytes/12) + `"` // which JSON writes as \u003c, six bytes
	huge := `"` + strings.Repeat("x", BatchBytes) + `"`
	for name, c := range map[string]struct {
		messages []*model.Message
		want     []int
	}{
		"none":        {nil, nil},
		"one":         {events(1, `{}`), []int{1}},
		"some":        {events(4, `"<&>"`), []int{4}},
		"many":        {events(2*BatchMax+1, `{}`), []int{BatchMax, BatchMax, 1}},
		"large":       {events(3, large), []int{1, 1, 1}},
		"huge":        {slices.Concat(events(2, `1`), events(1, huge), events(2, `1`)), []int{2, 1, 2}},
		"not JSON":    {slices.Concat(events(2, `1`), events(1, `{`), events(2, `1`)), []int{2, 1, 2}},
		"many, large": {slices.Concat(events(1, large), events(3, `1`)), []int{4}},
	} {
		t.Run(name, func(t *testing.T) {
			packed := Pack("websocket", c.messages)
			if diff := cmp.Diff(c.want, sizes(t, packed)); diff != "" {
				t.Errorf("messages per batch (-want +got):\n%s", diff)
			}
			var got []*model.Message
			for _, p := range packed {
				if !IsBatch(p.Message) {
					got = append(got, p.Message)
					continue
				}
				text, err := EncodeJSON(p.Message)
				if err != nil {
					t.Fatal(err)
				}
				there, err := DecodeJSON(text)
				if err != nil {
					t.Fatal(err)
				}
				carried, err := Unpack(there)
				if err != nil {
					t.Error(err)
				}
				if len(carried) != len(p.Carried) {
					t.Errorf("%d messages in a batch of %d", len(carried), len(p.Carried))
				}
				got = append(got, carried...)
			}
			if len(got) != len(c.messages) {
				t.Fatalf("%d messages came out of %d", len(got), len(c.messages))
			}
			for i, m := range got {
				want := c.messages[i]
				if m.Header != want.Header || m.Route != want.Route ||
					string(m.ContentData()) != string(want.ContentData()) {
					t.Errorf("message %d came out as %+v, want %+v", i, m.Header, want.Header)
				}
			}
		})
	}
}

// TestUnpackHostile: of a batch that breaks the rules, the messages that keep them come out, and the error says what
// does not.
func TestUnpackHostile(t *testing.T) {
	good := `{"header":{"msg_id":"a"},"route":{"resource":"default/event/e"}}`
	list := func(items ...string) string { return "[" + strings.Join(items, ",") + "]" }
	nested := `{"header":{"msg_id":"n"},"route":{"operation":"batch","resource":"null/batch"},"content":[` + good + `]}`
	for name, c := range map[string]struct {
		content string
		want    int
		text    string
	}{
		"null":           {`null`, 0, "is not a list"},
		"object":         {`{}`, 0, "is not a list"},
		"string":         {`"x"`, 0, "is not a list"},
		"empty":          {``, 0, "is not a list"},
		"empty list":     {`[]`, 0, ""},
		"not messages":   {list(`1`, good, `"x"`, `[]`, `null`), 1, "message 4"},
		"no id":          {list(good, `{"header":{}}`, good), 2, "message 1: malformed message: it has no id"},
		"long head":      {list(good, `{"header":{"msg_id":"`+strings.Repeat("x", maxName+1)+`"}}`), 1, "bytes, more than"},
		"nested":         {list(nested, good), 1, "it is a batch itself"},
		"cut off":        {`[` + good + `,{"header"`, 1, "unexpected EOF"},
		"too many":       {list(slices.Repeat([]string{good}, BatchMax+5)...), BatchMax, "more than 32 messages"},
		"too many bytes": {list(good, `"`+strings.Repeat("x", BatchBytes)+`"`, good), 1, "more than 524288 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			m := model.New("edged", "resource", OpBatch, ResourceBatch, json.RawMessage(c.content))
			got, err := Unpack(m)
			if len(got) != c.want || (err == nil) != (c.text == "") ||
				err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("Unpack = %d messages, %v; want %d, %q", len(got), err, c.want, c.text)
			}
		})
	}
}

// FuzzUnpack: no batch takes much memory or makes Unpack panic, and what comes out of it can be sent again.
func FuzzUnpack(f *testing.F) {
	for _, m := range Pack("websocket", events(3, `{"a":1}`)) {
		f.Add([]byte(m.Content))
	}
	f.Add([]byte(membound.Repeat(`[`, `{"header":{"msg_id":"a"}}`, `,`, `]`, 64<<10)))
	f.Add([]byte(membound.Repeat(`[`, `1`, `,`, `]`, 64<<10)))
	for _, text := range membound.JSON(`[{"header":{"msg_id":"a"},"content":`, `}]`, 64<<10) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		m := model.New("edged", "resource", OpBatch, ResourceBatch, content)
		var got []*model.Message
		membound.Check(t, membound.Linear(len(content), 32), func() { got, _ = Unpack(m) })
		if len(got) > BatchMax {
			t.Errorf("%d messages came out, limit %d", len(got), BatchMax)
		}
		for _, one := range got {
			if IsBatch(one) {
				t.Error("a batch came out of a batch")
			}
			if _, err := EncodeJSON(one); err != nil {
				t.Errorf("a message came out that cannot be sent: %v", err)
			}
		}
	})
}
