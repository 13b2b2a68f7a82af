package certificates

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// tokenKeySize is the size of the hash.
const tokenKeySize = 32

// claims are those of KubeEdge's tokens (exp), the node that a token is for, and that node's last revocation known when
// the token was made, in seconds since 1970.
type claims struct {
	Node  string `json:"node,omitempty"`
	Since int64  `json:"since,omitempty"`
	jwt.RegisteredClaims
}

// loadTokenKey loads the key that signs tokens from its Secret, or creates one. It is not the CA's key: a leak of one
// does not reveal the other.
func loadTokenKey(ctx context.Context, secrets Secrets) ([]byte, error) {
	data, _, err := update(ctx, secrets, tokenKeySecret, func(old map[string][]byte) (map[string][]byte, error) {
		if old != nil {
			return nil, nil
		}
		key := make([]byte, tokenKeySize)
		if _, err := rand.Read(key); err != nil {
			return nil, err
		}
		return map[string][]byte{tokenKeyData: key}, nil
	})
	if err != nil {
		return nil, err
	}
	if len(data[tokenKeyData]) < tokenKeySize {
		return nil, fmt.Errorf("secret %s: %s has less than %d bytes; delete the secret: cloudcore creates a new "+
			"key, and "+
			"earlier tokens become invalid", tokenKeySecret, tokenKeyData, tokenKeySize)
	}
	return data[tokenKeyData], nil
}

func newToken(ca *x509.Certificate, key []byte, node string, since, expires time.Time) (*certs.Token, error) {
	c := claims{Node: node, RegisteredClaims: jwt.RegisteredClaims{ExpiresAt: jwt.NewNumericDate(expires)}}
	if !since.IsZero() {
		c.Since = since.Unix()
	}
	bearer, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString(key)
	if err != nil {
		return nil, err
	}
	return certs.NewToken(ca.Raw, bearer)
}

// NewToken makes a token with a lifetime; for one node, or for any if node is empty.
func (a *Authority) NewToken(node string, ttl time.Duration) (*certs.Token, error) {
	return newToken(a.CA(), *a.tokenKey.Load(), node, a.revocations()[node], a.opts.Now().Add(ttl))
}

// VerifyToken checks a JSON Web Token for a node, and reports whether it is for that node alone.
func (a *Authority) VerifyToken(bearer, node string) (bound bool, err error) {
	c, err := a.verifyToken(bearer, node)
	return err == nil && c.Node != "", err
}

func (a *Authority) verifyToken(bearer, node string) (c claims, err error) {
	now := a.opts.Now()
	_, err = jwt.ParseWithClaims(bearer, &c, func(*jwt.Token) (any, error) { return *a.tokenKey.Load(), nil },
		jwt.WithValidMethods([]string{"HS256", "HS384", "HS512"}), jwt.WithExpirationRequired(),
		jwt.WithTimeFunc(func() time.Time { return now }))
	switch {
	case errors.Is(err, jwt.ErrTokenExpired) && c.ExpiresAt != nil:
		return c, fmt.Errorf("%w: it expired at %s, and the cloud's clock says %s; `cloudcore gettoken` prints a "+
			"new one",
			jwt.ErrTokenExpired,
			c.ExpiresAt.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case err != nil:
		return c, err
	case c.Node != "" && c.Node != node:
		return c, fmt.Errorf("the token is for node %q and not for node %q", c.Node, node)
	case c.Node != "" && c.Since < a.revocations().unix(node):
		return c, fmt.Errorf("the token is older than the last revocation of its node: %w",
			&RevokedError{node, a.revocations()[node]})
	}
	return c, nil
}

// refreshToken replaces the general token in its Secret if it is invalid or due. Replicas share the key, so any may do
// it.
func (a *Authority) refreshToken(ctx context.Context) error {
	_, wrote, err := update(ctx, a.secrets, tokenSecret, func(old map[string][]byte) (map[string][]byte, error) {
		if a.tokenIsFresh(string(old[tokenData])) {
			return nil, nil
		}
		token, err := a.NewToken("", 2*a.opts.TokenRefresh)
		if err != nil {
			return nil, err
		}
		return map[string][]byte{tokenData: []byte(token.String())}, nil
	})
	if wrote {
		klog.V(2).InfoS("Made a token for joining", "secret", tokenSecret, "validFor", 2*a.opts.TokenRefresh)
	}
	return err
}

func (a *Authority) tokenIsFresh(text string) bool {
	token, err := certs.ParseToken(text)
	if err != nil || !token.SignedBy(a.CA().Raw) {
		return false
	}
	if _, err := a.VerifyToken(token.Bearer, ""); err != nil {
		return false
	}
	left := token.Claims.Expires.Sub(a.opts.Now())
	return left > a.opts.TokenRefresh && left <= 2*a.opts.TokenRefresh
}

// ReadToken reads the general token from its secret, for `cloudcore gettoken`.
func ReadToken(ctx context.Context, secrets Secrets, now time.Time) (*certs.Token, error) {
	secret, err := secrets.Get(ctx, tokenSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notStarted(tokenSecret)
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", tokenSecret, err)
	}
	token, err := certs.ParseToken(string(secret.Data[tokenData]))
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", tokenSecret, err)
	}
	if e := token.Claims.Expires; !e.IsZero() && now.After(e) {
		return nil, fmt.Errorf("the token in secret %s expired at %s: cloudcore, which renews it, is not running; "+
			"start it, or check its log", tokenSecret, e.UTC().Format(time.RFC3339))
	}
	return token, nil
}

// NewNodeToken makes a token from the Secrets alone, for `cloudcore gettoken --node`. An empty node means any.
func NewNodeToken(ctx context.Context, secrets Secrets, node string, expires time.Time) (*certs.Token, error) {
	ca, err := secrets.Get(ctx, caSecret.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notStarted(caSecret.name)
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", caSecret.name, err)
	}
	cert, err := parseCert(ca.Data[caSecret.cert])
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", caSecret.name, err)
	}
	key, err := secrets.Get(ctx, tokenKeySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notStarted(tokenKeySecret)
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", tokenKeySecret, err)
	}
	if len(key.Data[tokenKeyData]) < tokenKeySize {
		return nil, fmt.Errorf("secret %s: %s has less than %d bytes", tokenKeySecret, tokenKeyData, tokenKeySize)
	}
	since, err := revokedSince(ctx, secrets, node)
	if err != nil {
		return nil, err
	}
	return newToken(cert, key.Data[tokenKeyData], node, since, expires)
}

func notStarted(secret string) error {
	return fmt.Errorf("there is no secret %s: cloudcore makes it when it starts, and has not started with this API "+
		"server", secret)
}

func parseCert(der []byte) (*x509.Certificate, error) {
	if len(der) == 0 {
		return nil, errors.New("is empty")
	}
	return x509.ParseCertificate(der)
}
