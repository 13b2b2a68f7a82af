package store

import "errors"

// Meta is a row of the table meta.
type Meta struct {
	Key, Type string
	Value     []byte
}

// Report is a row of the outbox.
type Report struct {
	Key string
	// Seq tells reports on one object apart; an ack names it. It is never given out twice.
	Seq int64
	// First is the Seq of the oldest report on the object since its last ack, which this one replaced. Sending by
	// First instead of by Seq, an object that changes often is not put off.
	First int64
	Value []byte
}

// Op is one operation of an Apply. Make one with the functions below.
type Op struct {
	kind  opKind
	meta  Meta
	seq   int64
	guard func(old []byte) bool
	// urgent: it may have some of the reserve.
	urgent bool
}

type opKind int

const (
	opUpsert opKind = iota + 1
	opReplace
	opDelete
	opOutboxPut
	opOutboxAck
	opAgentSet
	opAgentDelete
)

// errBadOp: an operation that cannot be done, whatever the state of the file.
var errBadOp = errors.New("operation cannot be done")

// Upsert stores a row, in place of one of the same key.
func Upsert(m Meta) Op { return Op{kind: opUpsert, meta: m} }

// UpsertIf stores a row if there is none of that key, or if guard says so of its value. The guard runs on the
// writer's goroutine: it has to be quick, and must not call the store.
func UpsertIf(m Meta, guard func(old []byte) bool) Op {
	return Op{kind: opUpsert, meta: m, guard: guard}
}

// ReplaceIf stores a row in place of one of that key if guard, as in UpsertIf, says so of its value. Where there is
// none, it stores nothing.
func ReplaceIf(m Meta, guard func(old []byte) bool) Op {
	return Op{kind: opReplace, meta: m, guard: guard}
}

// Delete removes a row; it is not an error if it does not exist.
func Delete(key string) Op { return Op{kind: opDelete, meta: Meta{Key: key}} }

// DeleteIf removes a row if guard, as in UpsertIf, says so of its value.
func DeleteIf(key string, guard func(old []byte) bool) Op {
	return Op{kind: opDelete, meta: Meta{Key: key}, guard: guard}
}

// OutboxPut stores a report on an object. It takes the place of an older one; the same again changes nothing.
func OutboxPut(key string, value []byte) Op {
	return Op{kind: opOutboxPut, meta: Meta{Key: key, Value: value}}
}

// OutboxAck removes a report if no newer one took its place.
func OutboxAck(key string, seq int64) Op {
	return Op{kind: opOutboxAck, meta: Meta{Key: key}, seq: seq}
}

// Urgent lets operations that store a little have some of the reserve on a full disk: half of it in all, until their
// rows are removed or there is room, and a quarter of that each. An Apply gets it if its other operations only take
// away.
func Urgent(ops ...Op) []Op {
	out := make([]Op, len(ops))
	for i, op := range ops {
		op.urgent = true
		out[i] = op
	}
	return out
}

// AgentSet notes something about the agent itself.
func AgentSet(key, value string) Op {
	return Op{kind: opAgentSet, meta: Meta{Key: key, Value: []byte(value)}}
}

// AgentDelete removes such a note.
func AgentDelete(key string) Op { return Op{kind: opAgentDelete, meta: Meta{Key: key}} }

// takesAway reports whether an operation only takes away, which has to work on a full disk.
func (op Op) takesAway() bool {
	switch op.kind {
	case opDelete, opOutboxAck, opAgentDelete:
		return true
	}
	return false
}
