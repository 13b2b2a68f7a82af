package shares

import (
	"encoding/binary"
	"io"
)

const (
	// recordHeader is the length of the header of a TLS record, whose last two bytes are the record's length.
	recordHeader = 5
	// recordAlert and recordHandshake are the types of the records that a TLS server reads to their end.
	recordAlert     = 21
	recordHandshake = 22
	// helloBytes is as much of a ClientHello as is waited for. One with a session ticket may have more.
	helloBytes = 4 << 10
	helloFirst = 512
)

// helloLength returns how many bytes a client sends before a TLS server does anything for it, given the first ones of
// them. A server refuses at once what is not a record of TLS.
func helloLength(b []byte) int {
	if len(b) < recordHeader {
		return recordHeader
	}
	if b[0] != recordHandshake && b[0] != recordAlert {
		return recordHeader
	}
	return min(recordHeader+int(binary.BigEndian.Uint16(b[recordHeader-2:])), helloBytes)
}

// readHello reads the first record of a client. It takes memory for what has arrived, not for what is announced.
func readHello(r io.Reader) ([]byte, error) {
	b := make([]byte, 0, recordHeader)
	for {
		want := helloLength(b)
		if len(b) >= want {
			return b, nil
		}
		if len(b) == cap(b) {
			grown := make([]byte, len(b), min(max(2*len(b), helloFirst), want))
			copy(grown, b)
			b = grown
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err != nil && len(b) < helloLength(b) {
			return nil, err
		}
	}
}
