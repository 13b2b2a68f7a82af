// Package model is the message of the bus and of the wire (docs/wire.md, Messages). A message is never modified after
// it was sent: anyone with a pointer may read it without a lock. Its content is the received JSON; the recipient
// decodes it once.
package model

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Operations.
const (
	OpInsert    = "insert"
	OpDelete    = "delete"
	OpQuery     = "query"
	OpUpdate    = "update"
	OpPatch     = "patch"
	OpUpload    = "upload"
	OpResponse  = "response"
	OpError     = "error"
	OpKeepalive = "keepalive"
)

// Modules and groups of the edge (docs/wire.md, Operations, sources and groups).
const (
	ModuleEdged       = "edged"
	ModuleMetaManager = "metamanager"
	ModuleEdgeHub     = "websocket"

	GroupEdged    = "edged"
	GroupMeta     = "meta"
	GroupHub      = "hub"
	GroupResource = "resource"
)

// OK is the content of an answer that only reports success.
var OK = json.RawMessage(`"OK"`)

// Header identifies the message.
type Header struct {
	ID       string `json:"msg_id"`
	ParentID string `json:"parent_msg_id,omitempty"`
	// Timestamp is in milliseconds since 1970.
	Timestamp       int64  `json:"timestamp"`
	ResourceVersion string `json:"resourceversion,omitempty"`
	Sync            bool   `json:"sync,omitempty"`
	Type            string `json:"type,omitempty"`
}

// Route says where a message comes from and what it is about.
type Route struct {
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	Group       string `json:"group,omitempty"`
	Operation   string `json:"operation,omitempty"`
	Resource    string `json:"resource,omitempty"`
}

// Message is what modules and both ends of the link exchange.
type Message struct {
	Header  Header          `json:"header"`
	Route   Route           `json:"route"`
	Content json.RawMessage `json:"content"`
}

// NewID makes an id for a message.
func NewID() string { return uuid.NewString() }

// New makes a message with a new id and the current time.
func New(source, group, operation, resource string, content json.RawMessage) *Message {
	return &Message{
		Header:  Header{ID: NewID(), Timestamp: time.Now().UnixMilli()},
		Route:   Route{Source: source, Group: group, Operation: operation, Resource: resource},
		Content: content,
	}
}

// Respond makes the answer to a message (docs/wire.md, Responses).
func (m *Message) Respond(content json.RawMessage) *Message {
	r := New(m.Route.Source, m.Route.Group, OpResponse, m.Route.Resource, content)
	r.Header.ParentID, r.Header.Type = m.Header.ID, m.Header.Type
	return r
}

// RespondError makes an answer that reports an error.
func (m *Message) RespondError(source string, err error) *Message {
	r := m.Respond(json.RawMessage(strconv.Quote("")))
	if text, e := json.Marshal(err.Error()); e == nil {
		r.Content = text
	}
	r.Route.Source, r.Route.Operation = source, OpError
	return r
}

// IsResponse reports whether the message answers another.
func (m *Message) IsResponse() bool { return m.Header.ParentID != "" }

// ContentData returns the object in a message: it may travel nested, or as a string that holds its JSON.
func (m *Message) ContentData() []byte {
	if len(m.Content) > 0 && m.Content[0] == '"' {
		var text string
		if err := json.Unmarshal(m.Content, &text); err == nil {
			return []byte(text)
		}
	}
	return m.Content
}
