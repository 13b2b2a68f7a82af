package metamanager

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// jwt is a stored token with the claims.
func jwt(claims string) []byte {
	text := "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	data, err := json.Marshal(map[string]any{"status": map[string]any{"token": text}})
	if err != nil {
		panic(err)
	}
	return data
}

func TestCanWait(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	exp := func(d time.Duration) string { return fmt.Sprintf(`{"exp":%d}`, now.Add(d).Unix()) }
	for name, c := range map[string]struct {
		token []byte
		want  bool
	}{
		"good for a year": {jwt(exp(365 * 24 * time.Hour)), true},
		"as asked for":    {jwt(exp(12 * time.Minute)), false},
		"nearly over":     {jwt(exp(tokenRoom)), false},
		"over":            {jwt(exp(-time.Hour)), false},
		"says nothing":    {jwt(`{}`), false},
		"no claims":       {jwt(`x`), false},
		"no JWT":          {token(now, 3600), false},
		"no base64":       {[]byte(`{"status":{"token":"a.%.c"}}`), false},
		"no token":        {[]byte(`x`), false},
	} {
		if got := canWait(c.token, now); got != c.want {
			t.Errorf("%s: canWait = %v, want %v", name, got, c.want)
		}
	}
}

// TestTokenPace: one in each gap, none at once on a new link; a clock that was set back holds nothing up.
func TestTokenPace(t *testing.T) {
	var p tokenPace
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		after time.Duration
		hold  bool
		want  bool
	}{
		{0, false, true}, {time.Second, false, false}, {tokenGap - 2*time.Second, false, false},
		{time.Second, false, true},
		{time.Hour, true, false}, {tokenGap - 1, false, false}, {1, false, true}, {-24 * time.Hour, false, true},
		{1, false, false},
	} {
		at = at.Add(step.after)
		if step.hold {
			p.hold(at)
		}
		if got := p.allow(at); got != step.want {
			t.Errorf("step %d: allow = %v, want %v", i, got, step.want)
		}
	}
}

func FuzzCanWait(f *testing.F) {
	f.Add(jwt(`{"exp":1}`))
	f.Add([]byte(`{"status":{"token":"a.b.c"}}`))
	f.Fuzz(func(t *testing.T, data []byte) { canWait(data, time.Unix(0, 0)) })
}
