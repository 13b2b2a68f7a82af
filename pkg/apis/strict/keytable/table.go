// Package keytable goes through the keys of a configuration file in one table, which says for each of them its default,
// what comes of a change, and which values are allowed: a new key is one row.
//
// A program has a function that calls a method of Table for each key, in order: a row. What it returns has the checks
// for such a value as methods. Each pass over the table does one thing with the rows: it lists them, sets the defaults,
// or checks the values.
package keytable

import (
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// Use is what comes of a key.
type Use uint8

const (
	// Ignored keys are accepted, and this version does not act on them.
	Ignored Use = iota
	// Absent keys are the switches of modules that this version lacks. Switching one on, even if that is the default,
	// gives a warning.
	Absent
	// Restart keys are acted on; a change applies once the program is started again.
	Restart
	// Reload keys are acted on; a change applies while the program runs.
	Reload

	// ZeroIsValue is added to a key whose zero turns something off: FillZeros does not replace it by the default.
	ZeroIsValue Use = 1 << 4
)

// Key is a key of a configuration, by the path of its names, and what comes of it.
type Key struct {
	Path string
	Use  Use
}

// UsedAs returns the paths of the keys with one of the uses.
func UsedAs(keys []Key, uses ...Use) map[string]bool {
	paths := map[string]bool{}
	for _, k := range keys {
		if slices.Contains(uses, k.Use) {
			paths[k.Path] = true
		}
	}
	return paths
}

// Pass is what a Table does with each of its rows.
type Pass uint8

const (
	// ListKeys appends the row's key to Keys.
	ListKeys Pass = iota
	// SetDefaults sets the value to its default.
	SetDefaults
	// FillZeros sets the value to its default if it is zero.
	FillZeros
	// CheckValues collects in Checker what is wrong with the value.
	CheckValues
)

// Table is one pass over the rows of a program's keys. A row is a call of the method for the type of its value. The
// methods of what it returns check the value, in the pass CheckValues only. The methods are not inlined: edgecore would
// be 20 KB larger.
type Table struct {
	Pass Pass
	// Keys are those of the rows so far, in their order. Only ListKeys sets it.
	Keys []Key
	// Checker is where CheckValues collects what is wrong.
	Checker *strict.Checker

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

// Section begins the rows of a section, whose path has a dot at its end. The values of one that is switched off are not
// checked.
//
//go:noinline
func (t *Table) Section(prefix string, on bool) { t.prefix, t.off = prefix, !on }

// Sets reports whether this pass sets a value to its default: the test before a default of a rare type, which then gets
// a Row.
//
//go:noinline
func (t *Table) Sets(isZero bool, u Use) bool {
	return t.Pass == SetDefaults || t.Pass == FillZeros && isZero && u&ZeroIsValue == 0
}

// Row is the row of a key whose default is its zero.
//
//go:noinline
func (t *Table) Row(name string, u Use) AnyRow {
	t.checks = t.Pass == CheckValues && !t.off
	switch {
	case t.checks:
		t.path = t.prefix + name
	case t.Pass == ListKeys:
		t.Keys = append(t.Keys, Key{t.prefix + name, u &^ ZeroIsValue})
	}
	return AnyRow{t}
}

// Bool is the row of a switch.
//
//go:noinline
func (t *Table) Bool(name string, field *bool, def bool, u Use) {
	if t.Sets(!*field, u) {
		*field = def
	}
	t.Row(name, u)
}

// BoolPtr is the row of a switch that may be unset.
//
//go:noinline
func (t *Table) BoolPtr(name string, field **bool, def bool, u Use) {
	if t.Sets(*field == nil, u) {
		*field = new(def)
	}
	t.Row(name, u)
}

// Int32 is the row of a number.
//
//go:noinline
func (t *Table) Int32(name string, field *int32, def int32, u Use) NumberRow {
	if t.Sets(*field == 0, u) {
		*field = def
	}
	return t.Row(name, u).Number(int64(*field))
}

// Int32Ptr is the row of a number that may be unset: then it is not checked.
//
//go:noinline
func (t *Table) Int32Ptr(name string, field **int32, def int32, u Use) NumberRow {
	if t.Sets(*field == nil, u) {
		*field = new(def)
	}
	return t.Row(name, u).NumberIfSet(*field)
}

// Duration is the row of a duration.
//
//go:noinline
func (t *Table) Duration(name string, field *metav1.Duration, def time.Duration, u Use) PeriodRow {
	if t.Sets(field.Duration == 0, u) {
		field.Duration = def
	}
	return t.Row(name, u).PeriodIfSet(field)
}

// DurationPtr is the row of a duration that may be unset: then it is not checked.
//
//go:noinline
func (t *Table) DurationPtr(name string, field **metav1.Duration, def time.Duration, u Use) PeriodRow {
	if t.Sets(*field == nil, u) {
		*field = &metav1.Duration{Duration: def}
	}
	return t.Row(name, u).PeriodIfSet(*field)
}

// String is the row of a text.
//
//go:noinline
func (t *Table) String(name string, field *string, def string, u Use) TextRow {
	if t.Sets(*field == "", u) {
		*field = def
	}
	t.text = *field
	t.Row(name, u)
	return TextRow{t}
}

// AnyRow is the row of a value whose type has no method of the table.
type AnyRow struct{ t *Table }

// Number checks the value as a number.
//
//go:noinline
func (r AnyRow) Number(value int64) NumberRow {
	r.t.number = value
	return NumberRow(r)
}

// NumberIfSet checks the value as a number, if it has one.
//
//go:noinline
func (r AnyRow) NumberIfSet(value *int32) NumberRow {
	if value == nil {
		r.t.checks = false
		return NumberRow(r)
	}
	return r.Number(int64(*value))
}

// PeriodIfSet checks the value as a duration, if it has one.
//
//go:noinline
func (r AnyRow) PeriodIfSet(value *metav1.Duration) PeriodRow {
	if value == nil {
		r.t.checks = false
	} else {
		r.t.number = int64(value.Duration)
	}
	return PeriodRow(r)
}

// Check checks the value of a row with a function for its type.
//
//go:noinline
func Check[T any](r AnyRow, value T, check func(c *strict.Checker, path string, value T)) {
	if r.t.checks {
		check(r.t.Checker, r.t.path, value)
	}
}

// NumberRow is the row of a number.
type NumberRow struct{ t *Table }

// AtLeast wants a number that is not below the least.
//
//go:noinline
func (n NumberRow) AtLeast(least int64) {
	if n.t.checks {
		n.t.Checker.AtLeast(n.t.path, n.t.number, least)
	}
}

// Within wants a number from least to most.
//
//go:noinline
func (n NumberRow) Within(least, most int64) {
	if n.t.checks {
		n.t.Checker.Within(n.t.path, n.t.number, least, most)
	}
}

// Between wants a number from least to most, which want describes.
//
//go:noinline
func (n NumberRow) Between(least, most int64, want string) {
	if n.t.checks && (n.t.number < least || n.t.number > most) {
		n.t.Checker.Fail(n.t.path, n.t.number, want)
	}
}

// PeriodRow is the row of a duration.
type PeriodRow struct{ t *Table }

// By checks the duration with a function.
//
//go:noinline
func (p PeriodRow) By(check func(c *strict.Checker, path string, value time.Duration)) {
	if p.t.checks {
		check(p.t.Checker, p.t.path, time.Duration(p.t.number))
	}
}

// Positive wants a duration above 0.
//
//go:noinline
func (p PeriodRow) Positive() { p.By((*strict.Checker).Positive) }

// NotNegative wants a duration of 0 or more.
//
//go:noinline
func (p PeriodRow) NotNegative() { p.By((*strict.Checker).NotNegative) }

// Between wants a duration from least to most, which want describes.
//
//go:noinline
func (p PeriodRow) Between(least, most time.Duration, want string) {
	if d := time.Duration(p.t.number); p.t.checks && (d < least || d > most) {
		p.t.Checker.Fail(p.t.path, d.String(), want)
	}
}

// NoneOrAtLeast allows 0, too.
//
//go:noinline
func (p PeriodRow) NoneOrAtLeast(least time.Duration, want string) {
	if p.t.number != 0 {
		p.Between(least, math.MaxInt64, want)
	}
}

// TextRow is the row of a text.
type TextRow struct{ t *Table }

// IfSet skips the check of an empty text.
//
//go:noinline
func (x TextRow) IfSet() TextRow {
	x.t.checks = x.t.checks && x.t.text != ""
	return x
}

// By checks the text with a function.
//
//go:noinline
func (x TextRow) By(check func(c *strict.Checker, path, value string)) {
	if x.t.checks {
		check(x.t.Checker, x.t.path, x.t.text)
	}
}

// Absolute wants an absolute path.
//
//go:noinline
func (x TextRow) Absolute() { x.By((*strict.Checker).Absolute) }

// AbsoluteOrNone wants an absolute path, or an empty text.
//
//go:noinline
func (x TextRow) AbsoluteOrNone() { x.By((*strict.Checker).AbsoluteOrNone) }

// Address wants an IP address.
//
//go:noinline
func (x TextRow) Address() { x.By((*strict.Checker).Address) }

// HostPort wants an address with a port.
//
//go:noinline
func (x TextRow) HostPort() { x.By((*strict.Checker).HostPort) }

// OneOf wants one of the words of allowed, which has spaces between them.
//
//go:noinline
func (x TextRow) OneOf(allowed string) {
	if x.t.checks {
		x.t.Checker.OneOf(x.t.path, x.t.text, strings.Fields(allowed)...)
	}
}

// Only accepts one value, and says why.
//
//go:noinline
func (x TextRow) Only(allowed, why string) {
	if x.t.checks && x.t.text != allowed {
		x.t.Checker.Fail(x.t.path, x.t.text, allowed+" ("+why+")")
	}
}
