// Package health is the registry of the agent's conditions: what is wrong with the agent or what it depends on. Logs,
// metrics, the status command and the health endpoint all read it.
package health

import (
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Condition is a current problem.
type Condition struct {
	Code     Code     `json:"code"`
	Title    string   `json:"title"`
	Severity Severity `json:"severity"`
	// Object is what the condition is about if there may be several, such as a file.
	Object string    `json:"object,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Remedy string    `json:"remedy"`
	Since  time.Time `json:"since"`
}

// Registry holds the conditions. The zero value is ready; its methods may be called from any goroutine.
type Registry struct {
	mu  sync.Mutex
	set map[id]Condition
	// brief is what TakeBrief returns; taken is set once it was called.
	brief map[Code]Condition
	taken bool
}

type id struct {
	code   Code
	object string
}

// Set sets a condition of an object ("" if there is only one), with its cause. It logs when the condition begins and
// when its detail changes.
func (r *Registry) Set(code Code, object, detail string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := id{code, object}
	c, there := r.set[key]
	if there && c.Detail == detail {
		return
	}
	if !there {
		e := known[code]
		c = Condition{
			Code:     code,
			Title:    e.Title,
			Severity: e.Severity,
			Object:   object,
			Remedy:   e.Remedy,
			Since:    time.Now(),
		}
	}
	c.Detail = detail
	if r.set == nil {
		r.set = map[id]Condition{}
	}
	r.set[key] = c
	if !there {
		klog.InfoS(c.Title, "condition", code, "object", object, "detail", detail, "remedy", c.Remedy)
	}
}

// SetError sets the condition if err is not nil, and clears it otherwise.
func (r *Registry) SetError(code Code, object string, err error) {
	if err == nil {
		r.Clear(code, object)
		return
	}
	r.Set(code, object, err.Error())
}

// Clear clears a condition.
func (r *Registry) Clear(code Code, object string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := id{code, object}
	c, there := r.set[key]
	if !there {
		return
	}
	delete(r.set, key)
	if !r.taken && known[code].After == 0 {
		if r.brief == nil {
			r.brief = map[Code]Condition{}
		}
		r.brief[code] = c
	}
	klog.InfoS("Condition is over", "condition", code, "object", object,
		"lasted", time.Since(c.Since).Round(time.Millisecond))
}

// Snapshot returns the conditions that have lasted long enough to be shown, the worst first.
func (r *Registry) Snapshot() []Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Condition
	now := time.Now()
	for key, c := range r.set {
		lasted := now.Sub(c.Since) // by the monotonic clock
		if lasted >= known[key.code].After {
			c.Since = now.Add(-lasted) // by the clock of now, which may have been set since
			list = append(list, c)
		}
	}
	smallsort.SortFunc(list, func(a, b Condition) int {
		if a.Severity != b.Severity {
			return strings.Compare(string(a.Severity), string(b.Severity)) // Error, Warning
		}
		if a.Code != b.Code {
			return strings.Compare(string(a.Code), string(b.Code))
		}
		return strings.Compare(a.Object, b.Object)
	})
	return list
}

// TakeBrief returns the conditions that were over before it was called for the first time, the last one of each code,
// without those that are shown only after a while. Later calls return none.
func (r *Registry) TakeBrief() map[Code]Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	brief := r.brief
	r.brief, r.taken = nil, true
	return brief
}

// Is reports whether a condition is set for any object, however short it has lasted.
func (r *Registry) Is(code Code) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.set {
		if key.code == code {
			return true
		}
	}
	return false
}

// Healthy returns the first condition that is an error; ok is true if there is none.
func (r *Registry) Healthy() (worst Condition, ok bool) {
	for _, c := range r.Snapshot() {
		if c.Severity == Error {
			return c, false
		}
	}
	return Condition{}, true
}

// Summary returns the first condition that is an error in a line, such as `systemctl status` shows; "Running" if there
// is none.
func (r *Registry) Summary() string {
	if worst, ok := r.Healthy(); !ok {
		return worst.Title + ": " + worst.Detail
	}
	return "Running"
}
