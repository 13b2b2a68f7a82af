package certificates

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// More keys of the CA's Secret, which KubeEdge ignores: concatenated certificates in DER form.
const (
	// previousData are the CAs before the last rotation whose certificates are still accepted.
	previousData = "previouscadata"
	// crossData are certificates for each CA's key, signed by the CA before it. A server sends them, so that nodes that
	// know only an older CA trust it as well, even after the older CA's certificates are refused.
	crossData = "crosscadata"
)

const (
	// maxPrevious is how many CAs are trusted in addition to the one that signs.
	maxPrevious = 2
	// maxCross limits how many certificates each handshake carries.
	maxCross = 3
)

// authorities are the signing CA and its predecessors. They are never changed.
type authorities struct {
	pair
	previous, cross []*x509.Certificate
	pool            *x509.CertPool // the CA and its predecessors
}

func newAuthorities(ca pair, previous, cross []*x509.Certificate) *authorities {
	return &authorities{ca, previous, cross, certs.Pool(append([]*x509.Certificate{ca.cert}, previous...)...)}
}

func decodeAuthorities(data map[string][]byte) (*authorities, error) {
	ca, err := caSecret.decode(data)
	if err != nil {
		return nil, err
	}
	previous, err := x509.ParseCertificates(data[previousData])
	if err != nil || len(previous) > maxPrevious {
		return nil, fmt.Errorf("%s holds %d certificates, want at most %d in DER form: %v", previousData, len(previous),
			maxPrevious, err)
	}
	cross, err := x509.ParseCertificates(data[crossData])
	if err != nil || len(cross) > maxCross {
		return nil, fmt.Errorf("%s holds %d certificates, want at most %d in DER form: %v", crossData, len(cross),
			maxCross, err)
	}
	return newAuthorities(ca, previous, cross), nil
}

func (c *authorities) encode() (map[string][]byte, error) {
	data, err := caSecret.encode(c.pair)
	if err != nil {
		return nil, err
	}
	for _, cert := range c.previous {
		data[previousData] = append(data[previousData], cert.Raw...)
	}
	for _, cert := range c.cross {
		data[crossData] = append(data[crossData], cert.Raw...)
	}
	return data, nil
}

// rotated returns the authorities with a new signing CA. The old one's key is discarded.
func (c *authorities) rotated(now time.Time) (*authorities, error) {
	if len(c.previous) >= maxPrevious {
		return nil,
			fmt.Errorf("%d older CAs are trusted already: finish their rotation first (`cloudcore rotate ca --finish`)",
				len(c.previous))
	}
	next, err := newCA(now)
	if err != nil {
		return nil, err
	}
	template := *next.cert
	if template.SerialNumber, err = certs.NewSerial(); err != nil {
		return nil, err
	}
	if template.NotAfter.After(c.cert.NotAfter) {
		template.NotAfter = c.cert.NotAfter
	}
	template.AuthorityKeyId = nil // the old CA's
	der, err := x509.CreateCertificate(rand.Reader, &template, c.cert, next.cert.PublicKey, c.key)
	if err != nil {
		return nil, err
	}
	cross, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	all := append([]*x509.Certificate{cross}, c.cross...)
	return newAuthorities(next, append([]*x509.Certificate{c.cert}, c.previous...), all[:min(len(all), maxCross)]), nil
}

// RotateCA creates a new CA, which signs from now on. The previous CA's certificates are accepted until FinishCA.
func RotateCA(ctx context.Context, secrets Secrets, now time.Time) error {
	return changeCA(ctx, secrets, func(c *authorities) (*authorities, error) {
		if err := c.checkCA(now); err != nil {
			return nil, err
		}
		return c.rotated(now)
	})
}

// FinishCA ends the trust in previous CAs. It returns how many there were.
func FinishCA(ctx context.Context, secrets Secrets) (n int, err error) {
	err = changeCA(ctx, secrets, func(c *authorities) (*authorities, error) {
		n = len(c.previous)
		return newAuthorities(c.pair, nil, c.cross), nil
	})
	return n, err
}

func changeCA(ctx context.Context, secrets Secrets, change func(*authorities) (*authorities, error)) error {
	_, _, err := update(ctx, secrets, caSecret.name, func(old map[string][]byte) (map[string][]byte, error) {
		if old == nil {
			return nil, notStarted(caSecret.name)
		}
		c, err := decodeAuthorities(old)
		if err != nil {
			return nil, fmt.Errorf("CA in secret %s: %w", caSecret.name, err)
		}
		if c, err = change(c); err != nil {
			return nil, err
		}
		data, err := c.encode()
		if err != nil {
			return nil, err
		}
		for key, value := range old { // keep keys that others added
			switch key {
			case caSecret.cert, caSecret.key, previousData, crossData:
			default:
				data[key] = value
			}
		}
		return data, nil
	})
	return err
}

// RotateTokenKey invalidates all tokens.
func RotateTokenKey(ctx context.Context, secrets Secrets) error {
	_, _, err := update(ctx, secrets, tokenKeySecret, func(old map[string][]byte) (map[string][]byte, error) {
		if old == nil {
			return nil, notStarted(tokenKeySecret)
		}
		key := make([]byte, tokenKeySize)
		if _, err := rand.Read(key); err != nil {
			return nil, err
		}
		data := maps.Clone(old)
		data[tokenKeyData] = key
		return data, nil
	})
	return err
}

// signed reports whether one of the CAs signed a certificate.
func (c *authorities) signed(cert *x509.Certificate) bool {
	for _, ca := range append([]*x509.Certificate{c.cert}, c.previous...) {
		if cert.CheckSignatureFrom(ca) == nil {
			return true
		}
	}
	return false
}

// chain returns the certificates that a server sends with its own.
func (a *Authority) chain() []*x509.Certificate {
	ca := a.ca.Load()
	if a.server.Load().cert.CheckSignatureFrom(ca.cert) != nil {
		return nil
	}
	return ca.cross
}

// applyCA loads the CA from its changed Secret. If that is invalid, it keeps the current CA.
func (a *Authority) applyCA(data map[string][]byte) {
	if a.fromFile {
		return
	}
	next, err := decodeAuthorities(data)
	if err == nil {
		err = next.pair.checkCA(a.opts.Now())
	}
	if err != nil {
		klog.ErrorS(err, "New CA not loaded; the previous one stays in use. Restore the "+
			"secret", "secret", caSecret.name)
		return
	}
	now := a.ca.Load()
	if now.cert.Equal(next.cert) && now.key.Equal(next.key) &&
		sameCerts(now.previous, next.previous) && sameCerts(now.cross, next.cross) {
		return
	}
	a.ca.Store(next)
	klog.InfoS("CA of the link changed", "serial", next.cert.SerialNumber, "alsoTrusted", len(next.previous))
	a.refreshSoon() // the server's certificate and the general token
	a.changed.callSubscribers()
}

func sameCerts(a, b []*x509.Certificate) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}

// applyServer loads the certificate that another replica made. Replicas with their own files keep their own.
func (a *Authority) applyServer(data map[string][]byte) {
	if a.ownFile.Load() {
		return
	}
	p, err := serverSecret.decode(data)
	if err != nil || p.cert.Equal(a.server.Load().cert) {
		return
	}
	a.refreshSoon() // Refresh checks the certificate
}

func (a *Authority) applyTokenKey(data map[string][]byte) {
	key := data[tokenKeyData]
	switch {
	case len(key) < tokenKeySize:
		klog.ErrorS(errors.New("it is too short"), "New token key not loaded; the previous one stays in use. "+
			"Delete the secret; cloudcore then creates a new key", "secret", tokenKeySecret)
	case !bytes.Equal(key, *a.tokenKey.Load()):
		a.tokenKey.Store(&key)
		klog.InfoS("Token key changed: earlier tokens are invalid")
		a.refreshSoon()
	}
}

// refreshTokenKey loads the token key, and creates one if there is none.
func (a *Authority) refreshTokenKey(ctx context.Context) error {
	key, err := loadTokenKey(ctx, a.secrets)
	if err != nil {
		if a.tokenKey.Load() != nil { // the key in memory is better than none
			klog.ErrorS(err, "Token key not read; the previous one stays in use")
			return nil
		}
		return err
	}
	a.tokenKey.Store(&key)
	return nil
}

// refreshSoon makes Run call Refresh. It does not block.
func (a *Authority) refreshSoon() {
	a.due.Notify()
}
