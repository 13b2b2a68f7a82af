package cloudhub

import (
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Record says which run of a node's agent connected last, at any cloudcore. It is an annotation of the Node, so that
// every cloudcore can read it. The zero value says nothing.
type Record struct {
	Instance wire.Instance
	// Since is when the run took the node's place. It also orders a node's records: each is later than the one it
	// replaces, even if its cloudcore's clock is behind.
	Since time.Time
}

const (
	// recordTime is the time format of a Record: UTC, to the millisecond.
	recordTime = "2006-01-02T15:04:05.000Z"
	// lastRecordYear leaves room for later records in the four digits of a year.
	lastRecordYear = 9000
)

// ParseRecord parses what String returns. It returns the zero value for anything else.
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

// String returns the value of the annotation; empty if the record says nothing.
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
