package v1beta1

import (
	"encoding/json"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// fieldExact is a field that no message in a CustomizedValue has. Readers that do not know it skip it, as KubeEdge's
// mappers do.
const fieldExact = 100

// SetExact adds the JSON text of a value to the message that stands for it in a CustomizedValue. KubeEdge's mappers
// read no other fraction than a FloatValue, which has seven digits; others get all digits by Exact.
func SetExact(m proto.Message, text []byte) {
	r := m.ProtoReflect()
	r.SetUnknown(protowire.AppendBytes(protowire.AppendTag(r.GetUnknown(), fieldExact, protowire.BytesType), text))
}

// Exact returns the JSON text that SetExact has added. ok is false if there is none, or it is not JSON.
func Exact(m proto.Message) (text []byte, ok bool) {
	for rest := []byte(m.ProtoReflect().GetUnknown()); len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, false
		}
		if number == fieldExact && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(rest)
			text, _ = protowire.ConsumeBytes(rest[tag:])
			return text, json.Valid(text)
		}
		rest = rest[n:]
	}
	return nil, false
}
