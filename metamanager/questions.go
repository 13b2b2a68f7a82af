package metamanager

import (
	"slices"
	"sync"
)

// questions are those whose answers the cloud owes, by the row that an answer is stored in. An answer may be older than
// what came meanwhile: a push about the same object, or the answer to a later question. It is not stored then.
type questions struct {
	mu    sync.Mutex
	byRow map[string][]*question
}

// question is one of them. Those of one row are in the order in which they were asked.
type question struct {
	row       string
	overtaken bool
}

// open notes a question before it is sent; close is to be called with it.
func (q *questions) open(row string) *question {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byRow == nil {
		q.byRow = map[string][]*question{}
	}
	one := &question{row: row}
	q.byRow[row] = append(q.byRow[row], one)
	return one
}

// close forgets a question. An answer that comes after it is not stored.
func (q *questions) close(one *question) {
	q.mu.Lock()
	defer q.mu.Unlock()
	one.overtaken = true
	left := slices.DeleteFunc(q.byRow[one.row], func(other *question) bool { return other == one })
	if q.byRow[one.row] = left; len(left) == 0 {
		delete(q.byRow, one.row)
	}
}

// counts reports whether the answer to a question may be stored. Those to earlier ones may not be any more.
func (q *questions) counts(one *question) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if one.overtaken {
		return false
	}
	for _, earlier := range q.byRow[one.row] {
		if earlier == one {
			break
		}
		earlier.overtaken = true
	}
	return true
}

// pushed notes that the cloud has told of an object without being asked.
func (q *questions) pushed(row string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, one := range q.byRow[row] {
		one.overtaken = true
	}
}
