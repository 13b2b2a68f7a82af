package wire

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
)

// HeaderInstance names the run of an agent. The edge sends a random value in its handshake, which is another one after
// each start of the agent: the cloud can tell an agent that restarts from two devices with one certificate. Upstream's
// ends do not know the header.
const HeaderInstance = "Edgecore-Instance"

// Instance is one run of an agent. The zero value is unknown.
type Instance [16]byte

// NewInstance makes a random one.
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

// Known reports whether the end said which run it is.
func (i Instance) Known() bool { return i != Instance{} }

// String is the header's value.
func (i Instance) String() string { return hex.EncodeToString(i[:]) }

// set puts the instance into a header, if it is known.
func (i Instance) set(h http.Header) {
	if i.Known() {
		h.Set(HeaderInstance, i.String())
	}
}
