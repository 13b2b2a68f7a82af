package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
)

const (
	// maxDepth limits the nesting of a message; Kubernetes objects stay far below.
	maxDepth = 128
	// maxName limits ids, resources and the like: they outlive a message.
	maxName = 4096
)

// EncodeJSON is the form of a message on a WebSocket (docs/wire.md, JSON encoding): compact, HTML characters escaped, a
// newline at the end.
func EncodeJSON(m *model.Message) ([]byte, error) {
	own := *m
	own.Header.Sync = false // only meaningful on a bus
	var buf bytes.Buffer
	buf.Grow(len(m.Content) + 384)
	if err := json.NewEncoder(&buf).Encode(&own); err != nil {
		return nil, unsendable(m, err)
	}
	return buf.Bytes(), nil
}

func unsendable(m *model.Message, err error) *Unsendable {
	return &Unsendable{fmt.Errorf("encode %s %s: %w", m.Route.Operation, m.Route.Resource, err)}
}

// DecodeJSON decodes a message. It ignores unknown fields, and leaves missing ones empty; only the id is required. The
// message shares no memory with data.
func DecodeJSON(data []byte) (*model.Message, error) {
	if d := depth(data); d > maxDepth {
		return nil, malformed("it is nested deeper than %d", maxDepth)
	}
	m := &model.Message{}
	if err := json.Unmarshal(data, m); err != nil {
		return nil, &Malformed{Err: err}
	}
	if err := check(m); err != nil {
		return nil, &Malformed{Err: err}
	}
	return m, nil
}

// check validates messages of both encodings.
func check(m *model.Message) error {
	if m.Header.ID == "" {
		return errors.New("it has no id")
	}
	for _, text := range []string{m.Header.ID, m.Header.ParentID, m.Header.ResourceVersion, m.Header.Type,
		m.Route.Source, m.Route.Destination, m.Route.Group, m.Route.Operation, m.Route.Resource} {
		if len(text) > maxName {
			return fmt.Errorf("a field of its head has %d bytes, more than %d", len(text), maxName)
		}
	}
	m.Header.Sync = false // another process's waiter does not concern this one
	return nil
}

// depth returns the nesting of a JSON text; for other texts it is meaningless.
func depth(data []byte) int {
	now, most, quoted := 0, 0, false
	for i := 0; i < len(data); i++ {
		c := data[i]
		if quoted {
			switch c {
			case '\\':
				i++
			case '"':
				quoted = false
			}
			continue
		}
		switch c {
		case '"':
			quoted = true
		case '{', '[':
			now++
			most = max(most, now)
		case '}', ']':
			now--
		}
	}
	return most
}
