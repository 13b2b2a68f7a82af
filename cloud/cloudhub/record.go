package cloudhub

import (
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Record says which run of a node's agent took the node's place last, at whichever cloudcore. It is an annotation of
// the Node, so that every cloudcore knows of it. The zero value says nothing.
type Record struct {
	Instance wire.Instance
	// Since is when the run took the place. It also orders the records of a node: each has a later time than the one
	// that it replaces, even if the clock of its cloudcore is behind.
	Since time.Time
}

const (
	// recordTime is how a Record writes its time: in UTC, to the millisecond.
	recordTime = "2006-01-02T15:04:05.000Z"
	// lastRecordYear leaves room for later records in the four digits of a year.
	lastRecordYear = 9000
)

// ParseRecord reads what String returns. Anything else is the zero value.
func ParseRecord(text string) Record {
	instance, since, ok := strings.Cut(text, " ")
	if !ok || len(since) != len(recordTime) {
		return Record{}
	}
	at, err := time.Parse(recordTime, since)
	r := Record{Instance: wire.DecodeInstance(instance), Since: at}
	if err != nil || at.Year() > lastRecordYear || !r.Known() || r.String() != text {
		return Record{}
	}
	return r
}

// Known reports whether the record names a run.
func (r Record) Known() bool { return r.Instance.Known() }

// String is the record as the annotation has it; empty if it says nothing.
func (r Record) String() string {
	if !r.Known() {
		return ""
	}
	return r.Instance.String() + " " + r.Since.UTC().Format(recordTime)
}

// next returns the record that replaces r.
func (r Record) next(instance wire.Instance, now time.Time) Record {
	now = now.UTC().Truncate(time.Millisecond)
	if !now.After(r.Since) {
		now = r.Since.Add(time.Millisecond)
	}
	return Record{Instance: instance, Since: now}
}
