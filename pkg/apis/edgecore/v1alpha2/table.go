package v1alpha2

import (
	"math"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// use is what comes of a key.
type use uint8

const (
	// ignored keys are accepted, and this version does not act on them.
	ignored use = iota
	// absent keys are the switches of modules that this version lacks. Switching one on, even if that is the default,
	// gives a warning.
	absent
	// restart keys are acted on; a change applies once the agent is started again.
	restart
	// reload keys are acted on; a change applies while the agent runs.
	reload

	// zeroIsValue is added to a key of the kubelet whose zero turns something off, so that it is not replaced by the
	// default.
	zeroIsValue use = 1 << 4
)

// key is a key of the configuration, and what comes of it.
type key struct {
	path string
	use  use
}

// pass is what a table does with each of its rows.
type pass uint8

const (
	listRows    pass = iota // append the row to rows
	setDefaults             // set the value to its default
	fillZeros               // set the value to its default if it is zero
	checkValues             // collect in checker what is wrong with the value
)

// table goes through the rows of the keys, in keys.go, with one of the passes. A row is a call of the method for the
// type of its value. What that returns has the checks for such a value as methods, which check in the one pass alone.
// The methods are not inlined: the program would be 20 KB larger.
type table struct {
	pass    pass
	rows    []key
	checker *checker
	// prefix is the path of the section whose rows come next, with a dot at its end.
	prefix string
	// off: the section is switched off, and its values are not checked.
	off bool

	// checks: the value of the current row is checked. It is number or text if its type is one of these.
	checks bool
	path   string
	number int64
	text   string
}

// section begins the rows of a section.
//
//go:noinline
func (t *table) section(prefix string, on bool) { t.prefix, t.off = prefix, !on }

// sets reports whether this pass sets a value to its default.
//
//go:noinline
func (t *table) sets(isZero bool, u use) bool {
	return t.pass == setDefaults || t.pass == fillZeros && isZero && u&zeroIsValue == 0
}

// row is the row of a key whose default is its zero.
//
//go:noinline
func (t *table) row(name string, u use) anyRow {
	t.checks = t.pass == checkValues && !t.off
	switch {
	case t.checks:
		t.path = t.prefix + name
	case t.pass == listRows:
		t.rows = append(t.rows, key{t.prefix + name, u &^ zeroIsValue})
	}
	return anyRow{t}
}

//go:noinline
func (t *table) bool(name string, field *bool, def bool, u use) {
	if t.sets(!*field, u) {
		*field = def
	}
	t.row(name, u)
}

//go:noinline
func (t *table) boolPtr(name string, field **bool, def bool, u use) {
	if t.sets(*field == nil, u) {
		*field = new(def)
	}
	t.row(name, u)
}

//go:noinline
func (t *table) int32(name string, field *int32, def int32, u use) numberRow {
	if t.sets(*field == 0, u) {
		*field = def
	}
	return t.row(name, u).number(int64(*field))
}

//go:noinline
func (t *table) int32Ptr(name string, field **int32, def int32, u use) numberRow {
	if t.sets(*field == nil, u) {
		*field = new(def)
	}
	return t.row(name, u).numberIfSet(*field)
}

//go:noinline
func (t *table) duration(name string, field *metav1.Duration, def time.Duration, u use) periodRow {
	if t.sets(field.Duration == 0, u) {
		field.Duration = def
	}
	return t.row(name, u).periodIfSet(field)
}

//go:noinline
func (t *table) durationPtr(name string, field **metav1.Duration, def time.Duration, u use) periodRow {
	if t.sets(*field == nil, u) {
		*field = &metav1.Duration{Duration: def}
	}
	return t.row(name, u).periodIfSet(*field)
}

//go:noinline
func (t *table) string(name string, field *string, def string, u use) textRow {
	if t.sets(*field == "", u) {
		*field = def
	}
	t.text = *field
	t.row(name, u)
	return textRow{t}
}

// anyRow is the row of a value whose type has no method of the table.
type anyRow struct{ t *table }

//go:noinline
func (r anyRow) number(value int64) numberRow {
	r.t.number = value
	return numberRow(r)
}

//go:noinline
func (r anyRow) numberIfSet(value *int32) numberRow {
	if value == nil {
		r.t.checks = false
		return numberRow(r)
	}
	return r.number(int64(*value))
}

//go:noinline
func (r anyRow) periodIfSet(value *metav1.Duration) periodRow {
	if value == nil {
		r.t.checks = false
	} else {
		r.t.number = int64(value.Duration)
	}
	return periodRow(r)
}

// by checks the value with a function for the kubelet's configuration.
//
//go:noinline
func (r anyRow) by(k *kubeletconfig.KubeletConfiguration,
	check func(*checker, string, *kubeletconfig.KubeletConfiguration)) {
	if r.t.checks {
		check(r.t.checker, r.t.path, k)
	}
}

// texts checks a list of texts.
//
//go:noinline
func (r anyRow) texts(values []string, check func(c *checker, path string, values []string)) {
	if r.t.checks {
		check(r.t.checker, r.t.path, values)
	}
}

// entries checks a mapping of the user's own keys.
//
//go:noinline
func (r anyRow) entries(values map[string]string, check func(c *checker, path string, values map[string]string)) {
	if r.t.checks {
		check(r.t.checker, r.t.path, values)
	}
}

// numberRow is the row of a number.
type numberRow struct{ t *table }

//go:noinline
func (n numberRow) atLeast(least int64) {
	if n.t.checks {
		n.t.checker.AtLeast(n.t.path, n.t.number, least)
	}
}

//go:noinline
func (n numberRow) within(least, most int64) {
	if n.t.checks {
		n.t.checker.Within(n.t.path, n.t.number, least, most)
	}
}

// between is within, with a text of its own.
//
//go:noinline
func (n numberRow) between(least, most int64, want string) {
	if n.t.checks && (n.t.number < least || n.t.number > most) {
		n.t.checker.Fail(n.t.path, n.t.number, want)
	}
}

// periodRow is the row of a duration.
type periodRow struct{ t *table }

//go:noinline
func (p periodRow) by(check func(c *checker, path string, value time.Duration)) {
	if p.t.checks {
		check(p.t.checker, p.t.path, time.Duration(p.t.number))
	}
}

//go:noinline
func (p periodRow) positive() { p.by((*checker).Positive) }

//go:noinline
func (p periodRow) notNegative() { p.by((*checker).NotNegative) }

//go:noinline
func (p periodRow) between(least, most time.Duration, want string) {
	if d := time.Duration(p.t.number); p.t.checks && (d < least || d > most) {
		p.t.checker.Fail(p.t.path, d.String(), want)
	}
}

// noneOrAtLeast allows 0, too.
//
//go:noinline
func (p periodRow) noneOrAtLeast(least time.Duration, want string) {
	if p.t.number != 0 {
		p.between(least, math.MaxInt64, want)
	}
}

// textRow is the row of a text.
type textRow struct{ t *table }

// ifSet skips the check of an empty text.
//
//go:noinline
func (x textRow) ifSet() textRow {
	x.t.checks = x.t.checks && x.t.text != ""
	return x
}

//go:noinline
func (x textRow) by(check func(c *checker, path, value string)) {
	if x.t.checks {
		check(x.t.checker, x.t.path, x.t.text)
	}
}

//go:noinline
func (x textRow) absolute() { x.by((*checker).Absolute) }

//go:noinline
func (x textRow) absoluteOrNone() { x.by((*checker).AbsoluteOrNone) }

//go:noinline
func (x textRow) address() { x.by((*checker).Address) }

//go:noinline
func (x textRow) hostPort() { x.by((*checker).HostPort) }

// oneOf wants one of the words of allowed.
//
//go:noinline
func (x textRow) oneOf(allowed string) {
	if x.t.checks {
		x.t.checker.OneOf(x.t.path, x.t.text, strings.Fields(allowed)...)
	}
}

// only accepts the one value that this agent supports of the kubelet's, and says why.
//
//go:noinline
func (x textRow) only(allowed, why string) {
	if x.t.checks && x.t.text != allowed {
		x.t.checker.Fail(x.t.path, x.t.text, allowed+" ("+why+")")
	}
}
