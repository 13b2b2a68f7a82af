package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// The packer's head (docs/wire.md, Packed encoding): version, type, flags, length; big endian.
const (
	packedVersion = 0x01010100
	packedMessage = 1
	packedHead    = 10
	// maxPacked is the packer's limit.
	maxPacked = 32 << 20
)

// Numbers of protobuf fields. Those from 100 are ours, and ignored by others.
const (
	fieldHeader, fieldRouter, fieldContent = 1, 2, 3
	// fieldIsJSON marks the content as JSON; otherwise it is the characters of a string.
	fieldIsJSON = 100

	fieldID, fieldParentID, fieldTimestamp, fieldSync, fieldType = 1, 2, 3, 4, 5
	fieldResourceVersion                                         = 100

	fieldSource, fieldGroup, fieldOperation, fieldResource = 1, 2, 3, 4
	fieldDestination                                       = 100
)

// WritePacked writes a message in the packer's framing, with one Write.
func WritePacked(w io.Writer, m *model.Message) error {
	data, err := encodePacked(m)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

func encodePacked(m *model.Message) ([]byte, error) {
	out := make([]byte, packedHead, packedHead+len(m.Content)+320)
	out, err := appendMessage(out, m)
	if err != nil {
		return nil, err
	}
	size := len(out) - packedHead
	if size > maxPacked {
		return nil, &TooLarge{Size: int64(size), Limit: maxPacked}
	}
	binary.BigEndian.PutUint32(out, packedVersion)
	out[4] = packedMessage
	binary.BigEndian.PutUint32(out[6:], uint32(size))
	return out, nil
}

func appendMessage(out []byte, m *model.Message) ([]byte, error) {
	content, isJSON, err := packContent(m.Content)
	if err != nil {
		return nil, unsendable(m, err)
	}
	var head, route []byte
	head = appendText(head, fieldID, m.Header.ID)
	head = appendText(head, fieldParentID, m.Header.ParentID)
	if m.Header.Timestamp != 0 {
		head = protowire.AppendTag(head, fieldTimestamp, protowire.VarintType)
		head = protowire.AppendVarint(head, protowire.EncodeZigZag(m.Header.Timestamp))
	}
	head = appendText(head, fieldType, m.Header.Type)
	head = appendText(head, fieldResourceVersion, m.Header.ResourceVersion)
	route = appendText(route, fieldSource, m.Route.Source)
	route = appendText(route, fieldGroup, m.Route.Group)
	route = appendText(route, fieldOperation, m.Route.Operation)
	route = appendText(route, fieldResource, m.Route.Resource)
	route = appendText(route, fieldDestination, m.Route.Destination)
	out = protowire.AppendTag(out, fieldHeader, protowire.BytesType)
	out = protowire.AppendBytes(out, head)
	out = protowire.AppendTag(out, fieldRouter, protowire.BytesType)
	out = protowire.AppendBytes(out, route)
	if len(content) > 0 {
		out = protowire.AppendTag(out, fieldContent, protowire.BytesType)
		out = protowire.AppendBytes(out, content)
	}
	if isJSON {
		out = protowire.AppendTag(out, fieldIsJSON, protowire.VarintType)
		out = protowire.AppendVarint(out, 1)
	}
	return out, nil
}

func appendText(out []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return out
	}
	out = protowire.AppendTag(out, field, protowire.BytesType)
	return protowire.AppendString(out, text)
}

// packContent turns a string into its characters, and leaves other JSON as it is.
func packContent(content json.RawMessage) (data []byte, isJSON bool, err error) {
	switch {
	case len(content) == 0:
		return []byte("null"), true, nil
	case !json.Valid(content):
		return nil, false, errors.New("content is not JSON")
	case content[0] != '"':
		return content, true, nil
	}
	var text string
	err = json.Unmarshal(content, &text)
	return []byte(text), false, err
}

// unpackContent is the inverse.
func unpackContent(data []byte, isJSON bool) (json.RawMessage, error) {
	if !isJSON {
		return json.Marshal(string(data))
	}
	if depth(data) > maxDepth {
		return nil, fmt.Errorf("it is nested deeper than %d", maxDepth)
	}
	if !json.Valid(data) {
		return nil, errors.New("content is not JSON")
	}
	return bytes.Clone(data), nil
}

// ReadPacked reads a message in the packer's framing. It returns io.EOF between two messages. A claimed length costs no
// memory before its bytes arrive.
func ReadPacked(r io.Reader, limit int64) (*model.Message, error) {
	var head [packedHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if v := binary.BigEndian.Uint32(head[:]); v>>24 != packedVersion>>24 {
		return nil, malformed("framing version %#08x is unknown", v)
	}
	if head[4] != packedMessage || head[5] != 0 {
		return nil, malformed("frame type %d with flags %#02x is unknown", head[4], head[5])
	}
	size := int64(binary.BigEndian.Uint32(head[6:]))
	if limit = min(limit, maxPacked); size > limit {
		return nil, &TooLarge{Size: size, Limit: limit}
	}
	var buf bytes.Buffer
	buf.Grow(int(min(size, 64<<10)))
	if _, err := io.CopyN(&buf, r, size); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return decodePacked(buf.Bytes())
}

func decodePacked(data []byte) (*model.Message, error) {
	m := &model.Message{}
	var content []byte
	isJSON := false
	err := eachField(data, func(field protowire.Number, value []byte, n uint64) error {
		switch field {
		case fieldHeader:
			return unpackHeader(&m.Header, value)
		case fieldRouter:
			return unpackRoute(&m.Route, value)
		case fieldContent:
			content = value
		case fieldIsJSON:
			isJSON = n != 0
		}
		return nil
	})
	if err == nil {
		m.Content, err = unpackContent(content, isJSON)
	}
	if err == nil {
		err = check(m)
	}
	if err != nil {
		return nil, &Malformed{Err: err}
	}
	return m, nil
}

func unpackHeader(h *model.Header, data []byte) error {
	return eachField(data, func(field protowire.Number, value []byte, n uint64) (err error) {
		switch field {
		case fieldID:
			h.ID, err = unpackText(value)
		case fieldParentID:
			h.ParentID, err = unpackText(value)
		case fieldTimestamp:
			h.Timestamp = protowire.DecodeZigZag(n)
		case fieldType:
			h.Type, err = unpackText(value)
		case fieldResourceVersion:
			h.ResourceVersion, err = unpackText(value)
		}
		return err
	})
}

func unpackRoute(r *model.Route, data []byte) error {
	return eachField(data, func(field protowire.Number, value []byte, _ uint64) (err error) {
		switch field {
		case fieldSource:
			r.Source, err = unpackText(value)
		case fieldGroup:
			r.Group, err = unpackText(value)
		case fieldOperation:
			r.Operation, err = unpackText(value)
		case fieldResource:
			r.Resource, err = unpackText(value)
		case fieldDestination:
			r.Destination, err = unpackText(value)
		}
		return err
	})
}

func unpackText(value []byte) (string, error) {
	if !utf8.Valid(value) {
		return "", errors.New("a text of its header is not UTF-8")
	}
	return string(value), nil
}

// eachField calls do with the fields of a protobuf message: value for bytes, n for varints.
func eachField(data []byte, do func(field protowire.Number, value []byte, n uint64) error) error {
	for len(data) > 0 {
		field, typ, size := protowire.ConsumeTag(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		var value []byte
		var n uint64
		switch typ {
		case protowire.BytesType:
			value, size = protowire.ConsumeBytes(data)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(data)
		default:
			size = protowire.ConsumeFieldValue(field, typ, data)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		if err := do(field, value, n); err != nil {
			return err
		}
	}
	return nil
}
