package v1beta1

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of names and values. KubeEdge's edgecores refuse longer ones.
const (
	MaxNameBytes  = 128
	MaxValueBytes = 512
	// MaxProperties is the most properties that a device may have.
	MaxProperties = 1000
	// MaxMessageBytes is the longest message of a state.
	MaxMessageBytes = 256
)

// CheckState returns an error if a state is not one of a device.
func CheckState(state string) error {
	states := []string{StateOnline, StateOffline, StateOK, StateUnknown, StateUnhealthy}
	if !slices.Contains(states, state) {
		return fmt.Errorf("state %.40q is invalid: use one of %s", state, strings.Join(states, ", "))
	}
	return nil
}

// Works reports whether a state is one of a device that works.
func Works(state string) bool { return state == StateOnline || state == StateOK }

// MessageOf returns what stays of the message of a state: CleanMessage of it, and nothing if the device works.
func MessageOf(state, message string) string {
	if Works(state) {
		return ""
	}
	return CleanMessage(message)
}

// CleanMessage returns the message of a state as it is kept and shown: printable UTF-8 of at most MaxMessageBytes.
// Whatever is not printable becomes a space, and several spaces one: a message comes from a device or a mapper, and is
// shown on terminals and in pages. The end of a longer message is replaced by "...".
func CleanMessage(message string) string {
	const more = "..."
	var b strings.Builder
	fits := 0 // how much of the message stays if it is too long
	space := false
	for _, r := range message {
		if r == ' ' || r == utf8.RuneError || !unicode.IsPrint(r) {
			space = b.Len() > 0
			continue
		}
		if space {
			b.WriteByte(' ')
			space = false
		}
		b.WriteRune(r)
		if b.Len() > MaxMessageBytes {
			return strings.TrimRight(b.String()[:fits], " ") + more
		}
		if b.Len() <= MaxMessageBytes-len(more) {
			fits = b.Len()
		}
	}
	return b.String()
}

// CheckName returns an error if a text cannot be the name of a property.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a property has no name")
	case len(name) > MaxNameBytes:
		return fmt.Errorf("the property name %.40q... has %d bytes, limit %d", name, len(name), MaxNameBytes)
	case strings.Trim(name, nameCharacters) != "":
		return fmt.Errorf("the property name %q has characters other than letters, digits and -_.,:/@#", name)
	}
	return nil
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/@#"

// CheckValue returns an error if a text cannot be a value of any property: it has more than MaxValueBytes, or is not
// UTF-8.
func CheckValue(value string) error {
	switch {
	case len(value) > MaxValueBytes:
		return fmt.Errorf("the value %.40q... has %d bytes, limit %d", value, len(value), MaxValueBytes)
	case !utf8.ValidString(value):
		return fmt.Errorf("the value %.40q is not UTF-8", value)
	}
	return nil
}

// CheckDesired returns an error if a value must not be set for a property of a device of this model. Without a model,
// or for a property that it does not have, nothing is known to be safe, so nothing may be set.
func (m *DeviceModel) CheckDesired(property, value string) error {
	if m == nil {
		return fmt.Errorf("property %s: the DeviceModel of the device is missing: nothing may be set without it",
			property)
	}
	rules, ok := m.Property(property)
	if !ok {
		return fmt.Errorf("property %s is not in the DeviceModel %s: add it there, or remove it from the device",
			property, m.Name)
	}
	return rules.CheckDesired(value)
}

// CheckDesired returns an error if a value must not be set for the property: the property is read-only, or the value is
// not of its type or out of its range.
func (p *ModelProperty) CheckDesired(value string) error {
	if p.AccessMode == ReadOnly {
		return fmt.Errorf("property %s is read-only: remove its desired value", p.Name)
	}
	if err := CheckValue(value); err != nil {
		return fmt.Errorf("property %s: %w", p.Name, err)
	}
	switch p.Type {
	case TypeInt:
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return fmt.Errorf("property %s: %q is not a whole number", p.Name, value)
		}
		return p.checkRange(value, new(big.Rat).SetInt64(n))
	case TypeFloat, TypeDouble:
		n, ok := decimal(value)
		if !ok {
			return fmt.Errorf("property %s: %q is not a number", p.Name, value)
		}
		bits := 64
		if p.Type == TypeFloat {
			bits = 32
		}
		if _, err := strconv.ParseFloat(value, bits); err != nil {
			return fmt.Errorf("property %s: %s does not fit into %d bits", p.Name, value, bits)
		}
		return p.checkRange(value, n)
	case TypeBoolean:
		if _, err := strconv.ParseBool(value); err != nil {
			return fmt.Errorf("property %s: %q is neither true nor false", p.Name, value)
		}
	}
	return nil
}

// CheckBounds returns an error if the minimum or maximum of a number is not a number. No value may be set then, since
// it is unknown which ones are safe.
func (p *ModelProperty) CheckBounds() error {
	if p.Type != TypeInt && p.Type != TypeFloat && p.Type != TypeDouble {
		return nil
	}
	for _, bound := range []struct{ name, text string }{{"minimum", p.Minimum}, {"maximum", p.Maximum}} {
		if _, ok := decimal(bound.text); bound.text != "" && !ok {
			return fmt.Errorf("property %s: the %s %.40q is not a number: correct the DeviceModel", p.Name, bound.name,
				bound.text)
		}
	}
	return nil
}

// checkRange returns an error if a number is not within the minimum and maximum; text is how it was written.
func (p *ModelProperty) checkRange(text string, n *big.Rat) error {
	if err := p.CheckBounds(); err != nil {
		return err
	}
	low, hasLow := decimal(p.Minimum)
	high, hasHigh := decimal(p.Maximum)
	if hasLow && n.Cmp(low) < 0 || hasHigh && n.Cmp(high) > 0 {
		return p.outOfRange(text)
	}
	return nil
}

// decimal reads a decimal number exactly. The policies in deploy/cloudcore/base/devices.yaml accept the same texts.
func decimal(text string) (*big.Rat, bool) {
	const maxBytes = 64
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if len(text) > maxBytes || strings.Trim(mantissa, "+-.0123456789") != "" ||
		len(strings.TrimLeft(exponent, "+-")) > 3 {
		return nil, false // fractions, other bases, and numbers that take much memory
	}
	return new(big.Rat).SetString(text)
}

func (p *ModelProperty) outOfRange(value string) error {
	low, high := "any", "any"
	if p.Minimum != "" {
		low = p.Minimum
	}
	if p.Maximum != "" {
		high = p.Maximum
	}
	return fmt.Errorf("property %s: %s is out of range (minimum %s, maximum %s)", p.Name, value, low, high)
}
