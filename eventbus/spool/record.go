package spool

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// A file is a sequence of records:
//
//	4 bytes  length of the body
//	4 bytes  CRC-32C of the body
//	body     1 byte kind, 8 bytes sequence number; for a message also
//	         1 byte flags (1: retain), 2 bytes length of the topic, topic, payload
//
// Numbers are big-endian. A record of kind head says that all messages with lower numbers were delivered.
const (
	kindMessage = 1
	kindHead    = 2

	recordHeader  = 8
	headBody      = 9
	messageHeader = 12
	maxRecord     = 1 << 20
)

var errDamaged = errors.New("the file is damaged")

type record struct {
	kind    byte
	seq     uint64
	message Message
	offset  int64
	size    int // with the header
}

func castagnoli(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

func seal(rec []byte) []byte {
	body := rec[recordHeader:]
	binary.BigEndian.PutUint32(rec, uint32(len(body)))
	binary.BigEndian.PutUint32(rec[4:], castagnoli(body))
	return rec
}

func encodeHead(seq uint64) []byte {
	rec := make([]byte, recordHeader, recordHeader+headBody)
	return seal(binary.BigEndian.AppendUint64(append(rec, kindHead), seq))
}

func encode(seq uint64, m Message) []byte {
	rec := make([]byte, recordHeader, recordHeader+messageHeader+len(m.Topic)+len(m.Payload))
	rec = binary.BigEndian.AppendUint64(append(rec, kindMessage), seq)
	var flags byte
	if m.Retain {
		flags = 1
	}
	rec = binary.BigEndian.AppendUint16(append(rec, flags), uint16(len(m.Topic)))
	return seal(append(append(rec, m.Topic...), m.Payload...))
}

// decode reads a whole record.
func decode(p []byte) (record, error) {
	if len(p) < recordHeader+headBody {
		return record{}, errDamaged
	}
	body := p[recordHeader:]
	if binary.BigEndian.Uint32(p) != uint32(len(body)) || binary.BigEndian.Uint32(p[4:]) != castagnoli(body) {
		return record{}, errDamaged
	}
	rec := record{kind: body[0], seq: binary.BigEndian.Uint64(body[1:]), size: len(p)}
	switch {
	case rec.kind == kindHead && len(body) == headBody:
		return rec, nil
	case rec.kind != kindMessage || len(body) < messageHeader:
		return record{}, errDamaged
	}
	n := int(binary.BigEndian.Uint16(body[10:]))
	if len(body) < messageHeader+n {
		return record{}, errDamaged
	}
	rec.message = Message{
		Topic:   string(body[messageHeader : messageHeader+n]),
		Payload: body[messageHeader+n:],
		Retain:  body[9]&1 != 0,
	}
	return rec, nil
}

// reader reads the records of a file one by one; offset is after the last good one.
type reader struct {
	r      *bufio.Reader
	offset int64
}

func newReader(r io.Reader) *reader { return &reader{r: bufio.NewReaderSize(r, 64<<10)} }

// next returns io.EOF at the end, and errDamaged for a record that is not whole.
func (r *reader) next() (record, error) {
	var header [recordHeader]byte
	if _, err := io.ReadFull(r.r, header[:]); err != nil {
		return record{}, damaged(err)
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > maxRecord {
		return record{}, errDamaged
	}
	p := make([]byte, recordHeader+int(n))
	copy(p, header[:])
	if _, err := io.ReadFull(r.r, p[recordHeader:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return record{}, damaged(err)
	}
	rec, err := decode(p)
	if err != nil {
		return record{}, err
	}
	rec.offset = r.offset
	r.offset += int64(len(p))
	return rec, nil
}

func damaged(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errDamaged
	}
	return err
}
