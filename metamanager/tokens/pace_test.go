package tokens

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// token is a stored token that was made at a time, with the life that was asked for.
func token(made time.Time, life int64) []byte {
	data, err := json.Marshal(map[string]any{
		"spec": map[string]any{"expirationSeconds": life},
		"status": map[string]any{
			"token": "t", "expirationTimestamp": metav1.NewTime(made.Add(time.Duration(life) * time.Second)),
		},
	})
	if err != nil {
		panic(err)
	}
	return data
}

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
		"nearly over":     {jwt(exp(room)), false},
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
	var p pace
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		after time.Duration
		hold  bool
		want  bool
	}{
		{0, false, true}, {time.Second, false, false}, {gap - 2*time.Second, false, false},
		{time.Second, false, true},
		{time.Hour, true, false}, {gap - 1, false, false}, {1, false, true}, {-24 * time.Hour, false, true},
		{1, false, false},
	} {
		at = at.Add(step.after)
		if step.hold {
			p.pauseRenewals(at)
		}
		if got := p.allow(at); got != step.want {
			t.Errorf("step %d: allow = %v, want %v", i, got, step.want)
		}
	}
}

func TestTokenFresh(t *testing.T) {
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		age  time.Duration
		life int64
		want bool
	}{
		{0, 3600, true}, {47 * time.Minute, 3600, true}, {49 * time.Minute, 3600, false}, {time.Hour * 2, 3600, false},
		{23 * time.Hour, 7 * 86400, true}, {25 * time.Hour, 7 * 86400, false}, {-40 * 365 * 24 * time.Hour, 3600, true},
	} {
		if got := fresh(token(made, c.life), made.Add(c.age)); got != c.want {
			t.Errorf("after %v of %d s: %v, want %v", c.age, c.life, got, c.want)
		}
	}
	for _, content := range []string{`{}`, `x`} {
		if fresh([]byte(content), made) {
			t.Errorf("fresh(%s) = true, want false", content)
		}
	}
}

func FuzzCanWait(f *testing.F) {
	f.Add(jwt(`{"exp":1}`))
	f.Add([]byte(`{"status":{"token":"a.b.c"}}`))
	f.Fuzz(func(t *testing.T, data []byte) { canWait(data, time.Unix(0, 0)) })
}
