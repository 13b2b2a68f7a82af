package wire

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// A batch is a message that carries others, if Batch is agreed. Each of them means what it means alone: it has its own
// id, is checked and handled on its own, and has its own answer. Only the cost of a message on the link is shared. The
// edge sends requests that wait at the same time in one batch; the cloud answers those in batches.
const (
	OpBatch       = "batch"
	ResourceBatch = "null/batch"
)

// Limits of a batch. A receiver ignores what exceeds them.
const (
	// BatchMax is how many messages a batch carries.
	BatchMax = 32
	// BatchBytes is how many bytes of JSON these have together.
	BatchBytes = 512 << 10
)

// IsBatch reports whether a message carries others.
func IsBatch(m *model.Message) bool {
	return m.Route.Operation == OpBatch && m.Route.Resource == ResourceBatch
}

// Packed is a message to write, and the messages that it carries; a message that is not a batch carries itself.
type Packed struct {
	*model.Message
	Carried []*model.Message
}

// Pack returns what to write in order to send messages in their order: batches, and a message as it is where no other
// one fits beside it. One that cannot be encoded is alone, so that only its own Write fails.
func Pack(source string, messages []*model.Message) []Packed {
	if len(messages) == 1 {
		return []Packed{{messages[0], messages}}
	}
	var out []Packed
	var group []*model.Message
	var texts [][]byte
	size := 0
	flush := func() {
		switch len(group) {
		case 0:
		case 1:
			out = append(out, Packed{group[0], group})
		default:
			content := slices.Concat([]byte("["), bytes.Join(texts, []byte(",")), []byte("]"))
			out = append(out, Packed{
				model.New(source, model.GroupResource, OpBatch, ResourceBatch, content), group,
			})
		}
		group, texts, size = nil, nil, 0
	}
	for _, m := range messages {
		text, err := EncodeJSON(m)
		if err != nil || len(text) > BatchBytes {
			flush()
			out = append(out, Packed{m, []*model.Message{m}})
			continue
		}
		text = bytes.TrimSuffix(text, []byte("\n"))
		if len(group) == BatchMax || size+len(text) > BatchBytes {
			flush()
		}
		group, texts, size = append(group, m), append(texts, text), size+len(text)
	}
	flush()
	return out
}

// Unpack returns the messages that a batch carries. The error says what was left out: what is not a message, what
// exceeds the limits, and a batch in a batch.
func Unpack(m *model.Message) (messages []*model.Message, err error) {
	content := m.Content
	if most := BatchBytes + BatchMax + 1; len(content) > most { // with commas and brackets
		content = content[:most]
		err = fmt.Errorf("batch %s: its messages have more than %d bytes", m.Header.ID, BatchBytes)
	}
	d := json.NewDecoder(bytes.NewReader(content))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, fmt.Errorf("batch %s: its content is not a list of messages", m.Header.ID)
	}
	for n := 0; d.More(); n++ {
		var text json.RawMessage
		if bad := d.Decode(&text); bad != nil {
			return messages, cmp.Or(err, fmt.Errorf("batch %s: message %d: %w", m.Header.ID, n, bad))
		}
		if n == BatchMax {
			return messages, fmt.Errorf("batch %s: it has more than %d messages", m.Header.ID, BatchMax)
		}
		one, bad := DecodeJSON(text)
		if bad == nil && IsBatch(one) {
			bad = malformed("it is a batch itself")
		}
		if bad != nil {
			err = fmt.Errorf("batch %s: message %d: %w", m.Header.ID, n, bad)
			continue
		}
		messages = append(messages, one)
	}
	return messages, err
}
