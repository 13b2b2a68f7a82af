package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// recorded are the messages between an upstream edge and cloud.
func recorded(t testing.TB) [][]byte {
	t.Helper()
	f, err := os.Open("testdata/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var all [][]byte
	for lines.Scan() {
		var line struct {
			Message json.RawMessage `json:"message"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Clone(line.Message))
	}
	if len(all) != 47 {
		t.Fatalf("%d recorded messages, want 47", len(all))
	}
	return all
}

// TestRecordedJSON: each recorded message comes through byte by byte.
func TestRecordedJSON(t *testing.T) {
	for i, want := range recorded(t) {
		m, err := DecodeJSON(want)
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		got, err := EncodeJSON(m)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want)+"\n", string(got)); diff != "" {
			t.Errorf("message %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestRecordedPacked: the packer's framing loses nothing between our ends.
func TestRecordedPacked(t *testing.T) {
	var stream bytes.Buffer
	var sent []*model.Message
	for _, data := range recorded(t) {
		m, err := DecodeJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		if err := WritePacked(&stream, m); err != nil {
			t.Fatal(err)
		}
		sent = append(sent, m)
	}
	r := iotest.OneByteReader(&stream)
	for i, want := range sent {
		got, err := ReadPacked(r, DefaultMaxMessage)
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("message %d (-want +got):\n%s", i, diff)
		}
	}
	if _, err := ReadPacked(r, DefaultMaxMessage); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

// TestKeepalivePacked is KubeEdge's example (docs/wire.md, Packed encoding).
func TestKeepalivePacked(t *testing.T) {
	want, err := hex.DecodeString("01010100" + "01" + "00" + "0000005d" +
		"0a2d0a2438663063386635652d336133312d346332352d396434312d31663861306532623763313118f681e682b966" +
		"12260a09776562736f636b657412087265736f757263651a096b656570616c69766522046e6f64651a0470696e67")
	if err != nil {
		t.Fatal(err)
	}
	m := &model.Message{
		Header:  model.Header{ID: "8f0c8f5e-3a31-4c25-9d41-1f8a0e2b7c11", Timestamp: 1760000000123},
		Route:   model.Route{Source: "websocket", Group: "resource", Operation: "keepalive", Resource: "node"},
		Content: json.RawMessage(`"ping"`),
	}
	var got bytes.Buffer
	if err := WritePacked(&got, m); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got\n%x, want\n%x", got.Bytes(), want)
	}
	back, err := ReadPacked(&got, DefaultMaxMessage)
	if diff := cmp.Diff(m, back); err != nil || diff != "" {
		t.Errorf("ReadPacked: %v (-want +got):\n%s", err, diff)
	}
}

func TestPackedContents(t *testing.T) {
	for content, want := range map[string]string{
		`{"a":1}`:             `{"a":1}`,
		`null`:                `null`,
		``:                    `null`,
		`""`:                  `""`,
		`"null"`:              `"null"`,
		`"{\"status\":{}}"`:   `"{\"status\":{}}"`,
		`"é\n"`:               `"é\n"`,
		`[1,2]`:               `[1,2]`,
		`12345678901234567.0`: `12345678901234567.0`,
		`false`:               `false`,
	} {
		m := &model.Message{Header: model.Header{
			ID:              "a",
			ParentID:        "b",
			ResourceVersion: "7",
			Type:            "channel",
			Timestamp:       -1,
		},
			Route: model.Route{Destination: "d"}, Content: json.RawMessage(content)}
		var stream bytes.Buffer
		if err := WritePacked(&stream, m); err != nil {
			t.Errorf("%s: %v", content, err)
			continue
		}
		got, err := ReadPacked(&stream, DefaultMaxMessage)
		m.Content = json.RawMessage(want)
		if diff := cmp.Diff(m, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", content, err, diff)
		}
	}
	var bad *Unsendable
	broken := &model.Message{Content: json.RawMessage(`{`)}
	if err := WritePacked(io.Discard, broken); !errors.As(err, &bad) {
		t.Errorf("content that is no JSON: %v, want *Unsendable", err)
	}
	if _, err := EncodeJSON(broken); !errors.As(err, &bad) {
		t.Errorf("content that is no JSON: %v, want *Unsendable", err)
	}
}

func TestDecodeJSON(t *testing.T) {
	nested := func(n int) string {
		return `{"header":{"msg_id":"a"},"content":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for _, c := range []struct {
		name, text, problem string // problem "": it is fine
	}{
		{"smallest", `{"header":{"msg_id":"a"}}`, ""},
		{"unknown fields", `{"header":{"msg_id":"a","new":1},"more":[],"route":{"x":{}}}`, ""},
		{"space around", " {\"header\":{\"msg_id\":\"a\"}}\r\n", ""},
		{"brackets in strings", `{"header":{"msg_id":"a"},"content":"` + strings.Repeat(`[\"`, 1000) + `"}`, ""},
		{"as deep as allowed", nested(maxDepth - 1), ""},
		{"too deep", nested(maxDepth), "deeper"},
		{"far too deep", strings.Repeat("[", 1<<20), "deeper"},
		{"nothing", ``, "unexpected end"},
		{"null", `null`, "no id"},
		{"no id", `{}`, "no id"},
		{"a list", `[]`, "cannot unmarshal"},
		{"cut", `{"header":{"msg_id":"a"`, "unexpected end"},
		{"two", `{"header":{"msg_id":"a"}}{}`, "after top-level"},
		{"id of a wrong type", `{"header":{"msg_id":1}}`, "cannot unmarshal"},
		{"timestamp too large", `{"header":{"msg_id":"a","timestamp":1e99}}`, "cannot unmarshal"},
		{"id too long", `{"header":{"msg_id":"` + strings.Repeat("a", maxName+1) + `"}}`, "4097 bytes"},
		{"resource too long", `{"header":{"msg_id":"a"},"route":{"resource":"` + strings.Repeat("a", maxName+1) + `"}}`,
			"4097 bytes"},
		{"binary", "\x00\x01\x02", "invalid character"},
	} {
		m, err := DecodeJSON([]byte(c.text))
		var bad *Malformed
		switch {
		case c.problem == "" && (err != nil || m.Header.ID != "a"):
			t.Errorf("%s: %+v, %v; want message a", c.name, m, err)
		case c.problem != "" && (!errors.As(err, &bad) || !strings.Contains(err.Error(), c.problem)):
			t.Errorf("%s: %v, want *Malformed with %q", c.name, err, c.problem)
		}
	}
}

// TestSyncStaysHome: the flag is absent on the wire, and one that comes means nothing (docs/wire.md, JSON encoding).
func TestSyncStaysHome(t *testing.T) {
	m := &model.Message{Header: model.Header{ID: "a", Sync: true}}
	data, err := EncodeJSON(m)
	if err != nil || bytes.Contains(data, []byte("sync")) || !m.Header.Sync {
		t.Errorf("encoded %s, %v, sync of the message itself %v; want no sync, true", data, err, m.Header.Sync)
	}
	got, err := DecodeJSON([]byte(`{"header":{"msg_id":"a","sync":true}}`))
	if err != nil {
		t.Error(err)
	} else if got.Header.Sync {
		t.Error("decoded sync = true, want false")
	}
}

func TestReadPackedRefuses(t *testing.T) {
	var ok bytes.Buffer
	if err := WritePacked(&ok, &model.Message{Header: model.Header{ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	change := func(at int, b byte) []byte {
		data := bytes.Clone(ok.Bytes())
		data[at] = b
		return data
	}
	var large *TooLarge
	var bad *Malformed
	for name, c := range map[string]struct {
		data []byte
		as   any
	}{
		"other version":      {change(0, 9), &bad},
		"other type":         {change(4, 2), &bad},
		"compressed":         {change(5, 0x80), &bad},
		"claims 4 GB":        {change(6, 0xff), &large},
		"claims the limit":   {append([]byte{1, 1, 1, 0, 1, 0, 0, 0, 0x10, 1}, make([]byte, 8192)...), &large},
		"no protobuf":        {append([]byte{1, 1, 1, 0, 1, 0, 0, 0, 0, 3}, 0xff, 0xff, 0xff), &bad},
		"no id":              {[]byte{1, 1, 1, 0, 1, 0, 0, 0, 0, 0}, &bad},
		"id that is no text": {append([]byte{1, 1, 1, 0, 1, 0, 0, 0, 0, 5}, 0x0a, 3, 0x0a, 1, 0xff), &bad},
	} {
		if _, err := ReadPacked(bytes.NewReader(c.data), 4096); !errors.As(err, c.as) {
			t.Errorf("%s: %v, want %T", name, err, c.as)
		}
	}
	for n := 1; n < ok.Len(); n++ {
		if _, err := ReadPacked(bytes.NewReader(ok.Bytes()[:n]), 4096); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v, want io.ErrUnexpectedEOF", n, err)
		}
	}
}

// TestClaimedLengthCostsNothing: memory comes with the bytes, not with the claim.
func TestClaimedLengthCostsNothing(t *testing.T) {
	claim := []byte{1, 1, 1, 0, 1, 0, 1, 0xff, 0xff, 0xff} // 32 MiB
	const reads = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range reads {
		if _, err := ReadPacked(bytes.NewReader(claim), 32<<20); err == nil {
			t.Fatal("ReadPacked of a frame that never came = nil, want an error")
		}
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / reads; got > 256<<10 {
		t.Errorf("%d bytes for a frame that never came, want at most %d", got, 256<<10)
	}
}

func FuzzDecodeJSON(f *testing.F) {
	for _, data := range recorded(f) {
		f.Add(data)
	}
	f.Add([]byte(`{"header":{"msg_id":"a","sync":true},"content":"\ud800"}`))
	for _, text := range membound.JSON(`{"header":{"msg_id":"a"},"content":`, `}`, 64<<10) {
		f.Add([]byte(text))
	}
	f.Add([]byte(membound.Repeat(`{`, `"header":{"msg_id":"a"}`, `,`, `}`, 64<<10)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m *model.Message
		var err error
		// The content is kept as text, once; a name of the head at most once for each time that it is given.
		membound.Check(t, membound.Linear(len(data), 8), func() { m, err = DecodeJSON(data) })
		if err != nil {
			return
		}
		again, err := EncodeJSON(m)
		if err != nil {
			t.Fatalf("decoded, but does not encode: %v", err)
		}
		back, err := DecodeJSON(again)
		if err != nil {
			t.Fatalf("ours is not decoded: %v", err)
		}
		if third, err := EncodeJSON(back); err != nil || !bytes.Equal(again, third) {
			t.Errorf("encoded again: %v, want no error and the same\n%s, want\n%s", err, third, again)
		}
	})
}

// packedFields are the fields of a packed message.
func packedFields(id, content string, isJSON bool) []byte {
	out := protowire.AppendTag(nil, fieldHeader, protowire.BytesType)
	out = protowire.AppendBytes(out, appendText(nil, fieldID, id))
	out = appendText(out, fieldContent, content)
	if isJSON {
		out = protowire.AppendTag(out, fieldIsJSON, protowire.VarintType)
		out = protowire.AppendVarint(out, 1)
	}
	return out
}

// packedOf puts the packer's head in front of a message.
func packedOf(fields []byte) []byte {
	head := []byte{1, 1, 1, 0, packedMessage, 0}
	return append(binary.BigEndian.AppendUint32(head, uint32(len(fields))), fields...)
}

func FuzzReadPacked(f *testing.F) {
	for _, data := range recorded(f)[:6] {
		m, err := DecodeJSON(data)
		if err != nil {
			f.Fatal(err)
		}
		packed, err := encodePacked(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	for _, seed := range []struct {
		content string
		isJSON  bool
	}{{strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000), true}, {strings.Repeat("\x00", 64<<10), false}} {
		f.Add(packedOf(packedFields("a", seed.content, seed.isJSON)))
	}
	f.Add(packedOf(bytes.Repeat(packedFields("a", "", false), 5_000)))
	f.Add(packedOf(packedFields("a", "\x8f", false)))
	f.Add([]byte{1, 1, 1, 0, 1, 0, 0x00, 0x0f, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		var m *model.Message
		var err error
		// A byte of a string that is not JSON may become six, in buffers that double while they grow, if none is kept
		// for it.
		membound.Check(t, membound.Linear(len(data), 64), func() { m, err = ReadPacked(bytes.NewReader(data), 1<<20) })
		if err != nil {
			return
		}
		packed, err := encodePacked(m)
		if err != nil {
			t.Fatalf("read, but cannot be written: %v", err)
		}
		back, err := ReadPacked(bytes.NewReader(packed), 2<<20)
		if err == nil { // a character that is not UTF-8 is escaped once
			m.Content, back.Content = m.ContentData(), back.ContentData()
		}
		if diff := cmp.Diff(m, back); err != nil || diff != "" {
			t.Errorf("ReadPacked: %v (-want +got):\n%s", err, diff)
		}
	})
}
