package prober

import (
	v1 "k8s.io/api/core/v1"
)

// kind is what a probe is for.
type kind int

const (
	startup kind = iota
	readiness
	liveness
	kinds
)

// String is the kind as events name it.
func (k kind) String() string { return [...]string{"Startup", "Readiness", "Liveness"}[k] }

// lower is the kind as it reads within a sentence.
func (k kind) lower() string { return [...]string{"startup", "readiness", "liveness"}[k] }

// result is the outcome of one attempt, or of all so far.
type result int

const (
	// unknown: nothing was learned.
	unknown result = iota
	success
	failure
	// warning is a success with an event.
	warning
)

// String is the result as events name it.
func (r result) String() string {
	return [...]string{"unknown", "success", "failure", "warning"}[r]
}

// tally counts what the attempts of one probe came to. The zero value is that of a container that was just started.
type tally struct {
	// verdict holds until as many attempts in a row say otherwise as the threshold asks for.
	verdict result
	// last is the newest attempt, run how many in a row were like it.
	last result
	run  int32
}

// withResult returns the tally with one more attempt. An attempt without a result changes nothing.
func (t tally) withResult(r result, spec *v1.Probe) tally {
	if r == warning {
		r = success
	}
	if r == unknown {
		return t
	}
	if t.last != r {
		t.last, t.run = r, 0
	}
	t.run++
	need := max(spec.SuccessThreshold, 1)
	if r == failure {
		need = threshold(spec)
	}
	if t.run >= need {
		t.verdict = r
	}
	return t
}

// threshold is how many failures in a row count.
func threshold(spec *v1.Probe) int32 {
	if spec.FailureThreshold > 0 {
		return spec.FailureThreshold
	}
	return 3
}

// isOver reports whether a probe has said all that it can of its container: a startup probe that has come to a verdict,
// or a liveness probe that has failed.
func (t tally) isOver(k kind) bool {
	switch k {
	case startup:
		return t.verdict != unknown
	case liveness:
		return t.verdict == failure
	}
	return false
}
