package v1beta1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of names and values. KubeEdge's edgecores refuse longer ones.
const (
	MaxNameBytes  = 128
	MaxValueBytes = 512
	// MaxProperties is the most properties that a device may have.
	MaxProperties = 1000
)

// CheckState returns an error if a state is not one of a device.
func CheckState(state string) error {
	states := []string{StateOnline, StateOffline, StateOK, StateUnknown, StateUnhealthy}
	if !slices.Contains(states, state) {
		return fmt.Errorf("state %.40q is invalid: use one of %s", state, strings.Join(states, ", "))
	}
	return nil
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
		low, noLow := strconv.ParseInt(p.Minimum, 10, 64)
		high, noHigh := strconv.ParseInt(p.Maximum, 10, 64)
		if noLow == nil && n < low || noHigh == nil && n > high {
			return p.outOfRange(value)
		}
	case TypeFloat, TypeDouble:
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("property %s: %q is not a number", p.Name, value)
		}
		low, noLow := strconv.ParseFloat(p.Minimum, 64)
		high, noHigh := strconv.ParseFloat(p.Maximum, 64)
		if n != n || noLow == nil && n < low || noHigh == nil && n > high {
			return p.outOfRange(value)
		}
	case TypeBoolean:
		if _, err := strconv.ParseBool(value); err != nil {
			return fmt.Errorf("property %s: %q is neither true nor false", p.Name, value)
		}
	}
	return nil
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
