package wire

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
)

// HeaderInstance identifies the run of an agent. The edge sends a random value in its handshake, which changes with
// each start of the agent: the cloud can distinguish a restarted agent from two devices with one certificate.
// KubeEdge's ends ignore it.
const HeaderInstance = "Edgecore-Instance"

// Instance is one run of an agent. The zero value is unknown.
type Instance [16]byte

// NewInstance returns a random instance.
func NewInstance() (i Instance) {
	_, _ = rand.Read(i[:]) // never fails
	return i
}

// ParseInstance reads the header. Without exactly one value of 32 hexadecimal digits, the instance is unknown.
func ParseInstance(h http.Header) (i Instance) {
	values := h.Values(HeaderInstance)
	if len(values) != 1 {
		return Instance{}
	}
	return DecodeInstance(values[0])
}

// DecodeInstance reads what String returns. Anything but 32 hexadecimal digits is unknown.
func DecodeInstance(text string) (i Instance) {
	if len(text) != hex.EncodedLen(len(i)) {
		return Instance{}
	}
	if _, err := hex.Decode(i[:], []byte(text)); err != nil {
		return Instance{}
	}
	return i
}

// Known reports whether the edge sent an instance.
func (i Instance) Known() bool { return i != Instance{} }

// String is the header's value.
func (i Instance) String() string { return hex.EncodeToString(i[:]) }

// set puts the instance into a header, if it is known.
func (i Instance) set(h http.Header) {
	if i.Known() {
		h.Set(HeaderInstance, i.String())
	}
}
