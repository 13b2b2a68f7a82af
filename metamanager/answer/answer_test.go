package answer

import (
	"strings"
	"testing"
)

// TestFailure: which answers are failures, and after which the same may be sent again.
func TestFailure(t *testing.T) {
	for name, c := range map[string]struct {
		answer        string
		failed, again bool
		code          int32
	}{
		"acknowledged":   {`"OK"`, false, false, 0},
		"empty":          {``, false, false, 0},
		"an object":      {`{"metadata":{"name":"one"}}`, false, false, 0},
		"done":           {`{"Object":{},"Err":null}`, false, false, 0},
		"no object":      {`{"ErrStatus":{"code":404}}`, true, false, 404},
		"not done":       {`{"Object":null,"Err":{"ErrStatus":{"code":403}}}`, true, false, 403},
		"no words":       {`{"Object":null,"Err":{}}`, true, true, 0},
		"too many":       {`{"Err":{"ErrStatus":{"code":429}}}`, true, true, 429},
		"took too long":  {`{"Err":{"ErrStatus":{"code":408}}}`, true, true, 408},
		"no rights yet":  {`{"Err":{"ErrStatus":{"code":401}}}`, true, true, 401},
		"trouble":        {`{"Err":{"ErrStatus":{"code":500}}}`, true, true, 500},
		"too large":      {`{"Err":{"ErrStatus":{"code":413}}}`, true, false, 413},
		"too many parts": {`[` + strings.Repeat(`0,`, ElementsMax) + `0]`, true, true, 0},
	} {
		failure := Failure([]byte(c.answer))
		if failure == nil {
			if c.failed {
				t.Errorf("%s: no failure, want one with the code %d", name, c.code)
			}
			continue
		}
		if !c.failed || failure.Code != c.code || Again(failure) != c.again {
			t.Errorf("%s: failure with the code %d, again %v; want one: %v, %d, %v", name, failure.Code,
				Again(failure), c.failed, c.code, c.again)
		}
	}
}
