package certificates

import (
	"crypto/ecdsa"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

func TestVerifyToken(t *testing.T) {
	c := newClock()
	a := newTestAuthority(t, newFakeSecrets(), c)
	caKey, err := certs.EncodeKey(a.ca.Load().key)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(method jwt.SigningMethod, key any, content jwt.MapClaims) string {
		t.Helper()
		text, err := jwt.NewWithClaims(method, content).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	hour := func(n int) jwt.MapClaims {
		return jwt.MapClaims{"exp": c.now().Add(time.Duration(n) * time.Hour).Unix()}
	}
	with := func(m jwt.MapClaims, key string, value any) jwt.MapClaims { m[key] = value; return m }
	good := signed(jwt.SigningMethodHS256, *a.tokenKey.Load(), hour(1))
	var ecKey *ecdsa.PrivateKey = a.ca.Load().key
	for name, tc := range map[string]struct {
		bearer string
		bound  bool
		err    string
	}{
		"general": {bearer: good},
		"HS512":   {bearer: signed(jwt.SigningMethodHS512, *a.tokenKey.Load(), hour(1))},
		"its own": {bearer: signed(jwt.SigningMethodHS256, *a.tokenKey.Load(), with(hour(1), "node", "edge1")),
			bound: true},
		"another's": {bearer: signed(jwt.SigningMethodHS256, *a.tokenKey.Load(), with(hour(1), "node", "edge2")),
			err: `for node "edge2" and not for node "edge1"`},
		"ended": {
			bearer: signed(jwt.SigningMethodHS256, *a.tokenKey.Load(), hour(-1)),
			err: "it expired at 2026-11-21T11:00:00Z, and the cloud's clock says 2026-11-21T12:00:00Z; `cloudcore " +
				"gettoken`",
		},
		"without an end": {
			bearer: signed(jwt.SigningMethodHS256, *a.tokenKey.Load(), jwt.MapClaims{}), err: "exp claim is required",
		},
		"not yet": {
			bearer: signed(jwt.SigningMethodHS256, *a.tokenKey.Load(),
				with(hour(2), "nbf", c.now().Add(time.Hour).Unix())), err: "not valid yet",
		},
		"the CA's key": {bearer: signed(jwt.SigningMethodHS256, caKey, hour(1)), err: "signature is invalid"},
		"an empty key": {bearer: signed(jwt.SigningMethodHS256, []byte{}, hour(1)), err: "signature is invalid"},
		"no signature": {
			bearer: signed(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, hour(1)),
			err:    "signing method none is invalid",
		},
		"another method": {
			bearer: signed(jwt.SigningMethodES256, ecKey, hour(1)), err: "signing method ES256 is invalid",
		},
		"other claims": {
			bearer: swapClaims(good, signed(jwt.SigningMethodHS256, []byte("x"), hour(9))), err: "signature is invalid",
		},
		"nonsense":         {bearer: "x", err: "malformed"},
		"with a CA's hash": {bearer: "00." + good, err: "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			bound, err := a.VerifyToken(tc.bearer, "edge1")
			wantError(t, err, tc.err)
			if bound != tc.bound {
				t.Errorf("bound %v, want %v", bound, tc.bound)
			}
		})
	}
}

// swapClaims puts the claims of b into a.
func swapClaims(a, b string) string {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	return strings.Join([]string{x[0], y[1], x[2]}, ".")
}

func TestGetToken(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	_, err := ReadToken(t.Context(), secrets, c.now())
	wantError(t, err, "cloudcore makes it when it starts")
	_, err = NewNodeToken(t.Context(), secrets, "edge1", c.now().Add(time.Hour))
	wantError(t, err, "cloudcore makes it when it starts")

	a := newTestAuthority(t, secrets, c)
	general, err := ReadToken(t.Context(), secrets, c.now())
	if err != nil {
		t.Fatal(err)
	}
	if bound, err := a.VerifyToken(general.Bearer, "any"); err != nil || bound {
		t.Errorf("bound %v, %v; want false", bound, err)
	}
	node, err := NewNodeToken(t.Context(), secrets, "edge1", c.now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if bound, err := a.VerifyToken(node.Bearer, "edge1"); err != nil || !bound || !node.SignedBy(a.CA().Raw) {
		t.Errorf("bound %v, %v; want true and signed by the CA", bound, err)
	}
	c.add(2 * time.Hour)
	if _, err := a.VerifyToken(node.Bearer, "edge1"); !errors.Is(err, jwt.ErrTokenExpired) {
		t.Errorf("VerifyToken after its end = %v, want %v", err, jwt.ErrTokenExpired)
	}
	c.add(48 * time.Hour)
	_, err = ReadToken(t.Context(), secrets, c.now())
	wantError(t, err, "cloudcore, which renews it, is not running")

	delete(secrets.secrets, "tokenkeysecret")
	_, err = NewNodeToken(t.Context(), secrets, "edge1", c.now())
	wantError(t, err, "there is no secret tokenkeysecret")
	secrets.secrets["tokensecret"].Data = nil
	_, err = ReadToken(t.Context(), secrets, c.now())
	wantError(t, err, "the token is empty")
	secrets.fail = errors.New("no API server")
	_, err = ReadToken(t.Context(), secrets, c.now())
	wantError(t, err, "no API server")
	_, err = NewNodeToken(t.Context(), secrets, "edge1", c.now())
	wantError(t, err, "no API server")
}

// TestTokenOfOldKey: a secret that holds a token of KubeEdge's, signed with the CA's key, gets one of ours.
func TestTokenOfOldKey(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	a := newTestAuthority(t, secrets, c)
	caKey, err := certs.EncodeKey(a.ca.Load().key)
	if err != nil {
		t.Fatal(err)
	}
	old, err := newToken(a.CA(), caKey, "", time.Time{}, c.now().Add(20*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	secrets.secrets["tokensecret"].Data["tokendata"] = []byte(old.String())
	if err := a.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := string(secrets.data("tokensecret", "tokendata")); got == old.String() {
		t.Errorf("token = %s, which nobody accepts any more; want a new one", got)
	}
}
