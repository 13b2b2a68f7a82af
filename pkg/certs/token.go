package certs

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// maxToken limits a token's text; a real one has about 200 bytes.
const maxToken = 8 << 10

// Token is what a device joins with (docs/wire.md, Token): its hash says which CA the device must trust, and its JSON
// Web Token makes the cloud trust the device.
type Token struct {
	// CAHash is the SHA-256 of the CA certificate's DER form.
	CAHash [sha256.Size]byte
	// Bearer is the JSON Web Token, which is sent to the cloud.
	Bearer string
	// Claims are the token's unverified claims. Only the cloud can verify them.
	Claims Claims
}

// Claims are the content of the JSON Web Token.
type Claims struct {
	// Expires is when the token expires; the zero time if it does not say.
	Expires time.Time
	// Node is the only node that the token is for; empty if it is for any.
	Node string
	// Since is the node's last revocation known when the token was made: certificates with an earlier NotBefore are
	// refused. It is zero if there was none.
	Since time.Time
}

// ParseToken parses the text form: <hex of the CA's hash>.<header>.<claims>.<signature>. It ignores surrounding space.
// Errors never contain the token.
func ParseToken(text string) (*Token, error) {
	text = strings.TrimSpace(text)
	parts := strings.Split(clipToken(text), ".")
	switch {
	case text == "":
		return nil, badToken("is empty")
	case len(text) > maxToken:
		return nil, badToken(fmt.Sprintf("has more than %d bytes", maxToken))
	case strings.ContainsAny(text, " \t\r\n"):
		return nil, badToken("has a space or a line break in it")
	case len(parts) == 3:
		return nil,
			badToken("has 3 parts with dots between them instead of 4: the hash of the CA at its beginning is missing")
	case len(parts) != 4:
		return nil, badToken(fmt.Sprintf("has %d parts with dots between them instead of 4", len(parts)))
	}
	t := &Token{Bearer: strings.Join(parts[1:], ".")}
	if n, err := hex.Decode(t.CAHash[:], []byte(parts[0][:min(len(parts[0]), 2*sha256.Size)])); err != nil ||
		n != sha256.Size || len(parts[0]) != 2*sha256.Size {
		return nil, badToken(fmt.Sprintf("does not begin with %d hexadecimal digits, the hash of the CA",
			2*sha256.Size))
	}
	var err error
	if t.Claims, err = decodeClaims(parts[2]); err != nil {
		return nil, badToken("is damaged in its third part: " + err.Error())
	}
	if parts[1] == "" || parts[3] == "" {
		return nil, badToken("has an empty part")
	}
	return t, nil
}

// clipToken limits how many parts a huge text is split into.
func clipToken(text string) string { return text[:min(len(text), maxToken)] }

func badToken(what string) error {
	return errors.New("the token " + what +
		"; copy the whole line that `cloudcore gettoken` (or `keadm gettoken`) prints in the cloud")
}

func decodeClaims(part string) (Claims, error) {
	data, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return Claims{}, errors.New("not base64")
	}
	var raw struct {
		Expires *float64 `json:"exp"`
		Node    string   `json:"node"`
		Since   float64  `json:"since"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return Claims{}, errors.New("not JSON")
	}
	claims := Claims{Node: raw.Node}
	if raw.Expires != nil && *raw.Expires > 0 && *raw.Expires < 1<<40 {
		claims.Expires = time.Unix(int64(*raw.Expires), 0)
	}
	if raw.Since > 0 && raw.Since < 1<<40 {
		claims.Since = time.Unix(int64(raw.Since), 0)
	}
	return claims, nil
}

// String is the text form.
func (t *Token) String() string { return hex.EncodeToString(t.CAHash[:]) + "." + t.Bearer }

// NewToken puts a JSON Web Token together with the hash of the CA.
func NewToken(ca []byte, bearer string) (*Token, error) {
	hash := sha256.Sum256(ca)
	return ParseToken(hex.EncodeToString(hash[:]) + "." + bearer)
}

// SignedBy reports whether a CA certificate, in DER form, is the one that the token names.
func (t *Token) SignedBy(ca []byte) bool {
	hash := sha256.Sum256(ca)
	return subtle.ConstantTimeCompare(hash[:], t.CAHash[:]) == 1
}
