package certs

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// kubeEdgeToken has the form of one that KubeEdge's `keadm gettoken` prints: header and claims as in
// docs/wire.md, Token.
const (
	kubeEdgeHash   = "b3a8e0e1f9ab1bfe3a36f231f676f78bb30a519d2b21e6c530c0eee8ebb4a5d0"
	kubeEdgeBearer = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJleHAiOjE3NjAwMDAwMDB9." +
		"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	kubeEdgeToken = kubeEdgeHash + "." + kubeEdgeBearer
)

func TestParseToken(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	for name, tc := range map[string]struct {
		text   string
		claims Claims
		err    string
	}{
		"KubeEdge's":     {text: kubeEdgeToken, claims: Claims{Expires: time.Unix(1760000000, 0)}},
		"with a newline": {text: "  " + kubeEdgeToken + "\n", claims: Claims{Expires: time.Unix(1760000000, 0)}},
		"for a node": {
			text:   kubeEdgeHash + ".h." + b64([]byte(`{"exp":5,"node":"edge1"}`)) + ".s",
			claims: Claims{Expires: time.Unix(5, 0), Node: "edge1"},
		},
		"without an end": {text: kubeEdgeHash + ".h." + b64([]byte(`{}`)) + ".s"},
		"a mad end":      {text: kubeEdgeHash + ".h." + b64([]byte(`{"exp":1e300}`)) + ".s"},
		"empty":          {text: " \n", err: "the token is empty; copy the whole line"},
		"no hash":        {text: kubeEdgeBearer, err: "the hash of the CA at its beginning is missing"},
		"cut":            {text: kubeEdgeToken[:80], err: "has 2 parts"},
		"two lines":      {text: kubeEdgeToken + "\n" + kubeEdgeToken, err: "a line break"},
		"five parts":     {text: kubeEdgeToken + ".x", err: "has 5 parts"},
		"short hash":     {text: "b3a8." + kubeEdgeBearer, err: "64 hexadecimal digits"},
		"long hash":      {text: "00" + kubeEdgeToken, err: "64 hexadecimal digits"},
		"no hex":         {text: strings.Repeat("z", 64) + "." + kubeEdgeBearer, err: "64 hexadecimal digits"},
		"claims, base64": {text: kubeEdgeHash + ".h.!.s", err: "damaged in its third part: not base64"},
		"claims, JSON": {
			text: kubeEdgeHash + ".h." + b64([]byte("x")) + ".s", err: "damaged in its third part: not JSON",
		},
		"empty header":    {text: kubeEdgeHash + ".." + b64([]byte("{}")) + ".s", err: "an empty part"},
		"empty signature": {text: kubeEdgeHash + ".h." + b64([]byte("{}")) + ".", err: "an empty part"},
		"huge":            {text: strings.Repeat(".", 1<<20), err: "more than 8192 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseToken(tc.text)
			wantError(t, err, tc.err)
			if err != nil {
				if strings.Contains(err.Error(), "eyJ") {
					t.Errorf("error = %v, want it without the token", err)
				}
				return
			}
			if diff := cmp.Diff(tc.claims, got.Claims); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.String() != strings.TrimSpace(tc.text) {
				t.Errorf("token printed as %s, want %s", got, strings.TrimSpace(tc.text))
			}
		})
	}
}

func TestTokenNamesItsCA(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	token, err := NewToken(a.cert.Raw, kubeEdgeBearer)
	if err != nil {
		t.Fatal(err)
	}
	if !token.SignedBy(a.cert.Raw) || token.SignedBy(b.cert.Raw) || token.SignedBy(nil) {
		t.Errorf("signed by its CA %v, another CA %v, none %v; want true, false, false", token.SignedBy(a.cert.Raw),
			token.SignedBy(b.cert.Raw), token.SignedBy(nil))
	}
	if token.Bearer != kubeEdgeBearer {
		t.Errorf("bearer = %q, want %q", token.Bearer, kubeEdgeBearer)
	}
	if _, err := NewToken(a.cert.Raw, "x"); err == nil {
		t.Error("NewToken of what is not a JSON Web Token = nil, want an error")
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(kubeEdgeToken)
	f.Add("")
	f.Add("....")
	f.Add(strings.Repeat(".", 64<<10))
	f.Add(strings.Repeat("\n", 64<<10) + kubeEdgeToken)
	for _, text := range membound.JSON(`{"exp":`, `}`, maxToken/2) {
		f.Add(strings.Repeat("0", 64) + ".a." + base64.RawURLEncoding.EncodeToString([]byte(text)) + ".b")
	}
	f.Fuzz(func(t *testing.T, text string) {
		var token *Token
		var err error
		// No more than maxToken bytes are taken apart, into as many strings at most; space in front is not copied.
		membound.Check(t, membound.Linear(min(len(text), maxToken), 64), func() { token, err = ParseToken(text) })
		if err != nil {
			return
		}
		again, err := ParseToken(token.String())
		if err != nil {
			t.Fatalf("ParseToken of %q, as %q is printed = %v, want no error", token, text, err)
		}
		if diff := cmp.Diff(token, again); diff != "" {
			t.Errorf("token parsed again (-want +got):\n%s", diff)
		}
	})
}
