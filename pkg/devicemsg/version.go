package devicemsg

import (
	"encoding/json"
	"strconv"
	"strings"
)

// FormatVersion returns the version of a value or state: EPOCH.NUMBER.
func FormatVersion(epoch string, number int64) string {
	return epoch + "." + strconv.FormatInt(number, 10)
}

// ParseVersion reads a version.
func ParseVersion(text string) (epoch string, number int64, ok bool) {
	i := strings.LastIndexByte(text, '.')
	if i < 0 {
		return "", 0, false
	}
	number, err := strconv.ParseInt(text[i+1:], 10, 64)
	return text[:i], number, err == nil
}

// OlderVersion reports whether a version is lower than another one of the same epoch. Versions of different epochs
// cannot be compared.
func OlderVersion(version, than string) bool {
	e1, n1, ok1 := ParseVersion(version)
	e2, n2, ok2 := ParseVersion(than)
	return ok1 && ok2 && e1 == e2 && n1 < n2
}

// Outdated is the content of the cloud's answer to a report of which something was not written: the API has a newer
// version of it.
type Outdated struct {
	// Message says so in words.
	Message string `json:"message"`
	// Values has the versions of reported values in the API, by property, Desired those of desired values; State is
	// that of the state.
	Values  map[string]string `json:"values,omitempty"`
	Desired map[string]string `json:"desired,omitempty"`
	State   string            `json:"state,omitempty"`
}

// Error implements error.
func (o *Outdated) Error() string { return o.Message }

// Empty reports whether nothing is outdated.
func (o *Outdated) Empty() bool { return len(o.Values)+len(o.Desired) == 0 && o.State == "" }

// DecodeOutdated reads the content of an answer that reports an error; nil if it is another error.
func DecodeOutdated(content []byte) *Outdated {
	var o Outdated
	if len(content) == 0 || content[0] != '{' || json.Unmarshal(content, &o) != nil {
		return nil
	}
	if o.Empty() {
		return nil
	}
	return &o
}
