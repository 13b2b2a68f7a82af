// Package topic is what the broker and the client of MQTT in the agent share: the message, and the validation of topic
// names and filters and their match (MQTT 5.0, section 4.7).
package topic

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The longest topic that the event bus accepts. MQTT allows 64 KiB and as many levels, and each level costs the broker
// a node in its tree.
const (
	MaxBytes  = 1024
	MaxLevels = 32
)

// CheckName returns why messages cannot be published on a topic, or nil.
func CheckName(name string) error {
	if err := check(name); err != nil {
		return fmt.Errorf("topic %.64q: %w", name, err)
	}
	if strings.ContainsAny(name, "+#") {
		return fmt.Errorf("topic %.64q: + and # are allowed only in subscriptions", name)
	}
	return nil
}

// CheckFilter returns why a topic filter is invalid, or nil. It does not know shared subscriptions ($share).
func CheckFilter(filter string) error {
	if err := check(filter); err != nil {
		return fmt.Errorf("topic filter %.64q: %w", filter, err)
	}
	for rest, more := filter, true; more; {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		switch {
		case len(level) > 1 && strings.ContainsAny(level, "+#"):
			return fmt.Errorf("topic filter %.64q: + and # must be a whole level", filter)
		case level == "#" && more:
			return fmt.Errorf("topic filter %.64q: # must be the last level", filter)
		}
	}
	return nil
}

func check(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > MaxBytes:
		return fmt.Errorf("has %d bytes, want at most %d", len(s), MaxBytes)
	case strings.Count(s, "/")+1 > MaxLevels:
		return fmt.Errorf("has %d levels, want at most %d", strings.Count(s, "/")+1, MaxLevels)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return errors.New("must be UTF-8 without NUL")
	}
	return nil
}

// IsWildcard reports whether a filter can match more than one topic.
func IsWildcard(filter string) bool { return strings.ContainsAny(filter, "+#") }

// Match reports whether a valid filter matches a topic. A filter that begins with a wildcard does not match a topic
// that begins with $.
func Match(filter, name string) bool {
	if strings.HasPrefix(name, "$") && (strings.HasPrefix(filter, "+") || strings.HasPrefix(filter, "#")) {
		return false
	}
	for {
		f, filterRest, filterMore := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		n, nameRest, nameMore := strings.Cut(name, "/")
		switch {
		case f != "+" && f != n:
			return false
		case !filterMore && !nameMore:
			return true
		case filterMore && !nameMore:
			return filterRest == "#" // a/# matches a
		case !filterMore:
			return false
		}
		filter, name = filterRest, nameRest
	}
}
