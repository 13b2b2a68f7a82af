package jsonbound

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestHasMore(t *testing.T) {
	for text, want := range map[string]int{
		`{}`:                         1,
		`{"a":[1,2,3]}`:              4,
		`{"a,[{":"\",{[\\","b":"["}`: 2,
		`"unended ,,,,`:              0,
		`"ends in a backslash\`:      0,
		``:                           0,
	} {
		padded := []byte(text + strings.Repeat(" ", 100))
		if HasMore(padded, want) || want > 0 && !HasMore(padded, want-1) {
			t.Errorf("%s: more than %d: %v, more than %d: %v; want %d elements", text,
				want, HasMore(padded, want), want-1, HasMore(padded, want-1), want)
		}
	}
}
