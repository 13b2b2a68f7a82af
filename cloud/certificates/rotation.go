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

// More of the secret of the CA, which KubeEdge does not look at: certificates in DER form, one after the other.
const (
	// previousData are CAs of before the last rotation whose certificates are still good.
	previousData = "previouscadata"
	// crossData are certificates for the key of each CA by the CA before it. A server shows them, so that nodes which
	// know an older CA only trust it as well. They go on with that after the older CA's certificates are refused.
	crossData = "crosscadata"
)

const (
	// maxPrevious bounds the CAs that are trusted beside the one that signs.
	maxPrevious = 2
	// maxCross bounds what each handshake carries.
	maxCross = 3
)

// authorities are the CA that signs, and those before it. They are never changed.
type authorities struct {
	pair
	previous, cross []*x509.Certificate
	pool            *x509.CertPool // the CA and those before it
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

// rotated returns the authorities with a new CA that signs. The key of the old one is gone.
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

// RotateCA has another CA sign from now on. Certificates of the one before are good until FinishCA.
func RotateCA(ctx context.Context, secrets Secrets, now time.Time) error {
	return changeCA(ctx, secrets, func(c *authorities) (*authorities, error) {
		if err := c.checkCA(now); err != nil {
			return nil, err
		}
		return c.rotated(now)
	})
}

// FinishCA ends the trust in the CAs of before. It returns how many there were.
func FinishCA(ctx context.Context, secrets Secrets) (n int, err error) {
	err = changeCA(ctx, secrets, func(c *authorities) (*authorities, error) {
		n = len(c.previous)
		return newAuthorities(c.pair, nil, c.cross), nil
	})
	return n, err
}

func changeCA(ctx context.Context, secrets Secrets, change func(*authorities) (*authorities, error)) error {
	_, _, err := keep(ctx, secrets, caSecret.name, func(old map[string][]byte) (map[string][]byte, error) {
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
		for key, value := range old { // what others keep there stays
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
	_, _, err := keep(ctx, secrets, tokenKeySecret, func(old map[string][]byte) (map[string][]byte, error) {
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

// signed reports whether a certificate is of one of the CAs.
func (c *authorities) signed(cert *x509.Certificate) bool {
	for _, ca := range append([]*x509.Certificate{c.cert}, c.previous...) {
		if cert.CheckSignatureFrom(ca) == nil {
			return true
		}
	}
	return false
}

// chain is what a server shows beside its certificate.
func (a *Authority) chain() []*x509.Certificate {
	ca := a.ca.Load()
	if a.server.Load().cert.CheckSignatureFrom(ca.cert) != nil {
		return nil
	}
	return ca.cross
}

// observeCA takes over the CA of its secret. It keeps the one that it has rather than one that is invalid.
func (a *Authority) observeCA(data map[string][]byte) {
	if a.fromFile {
		return
	}
	next, err := decodeAuthorities(data)
	if err == nil {
		err = next.pair.checkCA(a.opts.Now())
	}
	if err != nil {
		klog.ErrorS(err, "CA not taken over; going on with the one before. Restore the secret", "secret", caSecret.name)
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
	a.changed.call()
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

// observeServer takes over the certificate that another replica made. Of replicas that have files of their own each
// keeps its own.
func (a *Authority) observeServer(data map[string][]byte) {
	if a.ownFile.Load() {
		return
	}
	p, err := serverSecret.decode(data)
	if err != nil || p.cert.Equal(a.server.Load().cert) {
		return
	}
	a.refreshSoon() // which decides whether it is good
}

func (a *Authority) observeTokenKey(data map[string][]byte) {
	key := data[tokenKeyData]
	switch {
	case len(key) < tokenKeySize:
		klog.ErrorS(errors.New("it is too short"), "Key of tokens not taken over; going on with the one before. "+
			"Delete the secret to have a new key made", "secret", tokenKeySecret)
	case !bytes.Equal(key, *a.tokenKey.Load()):
		a.tokenKey.Store(&key)
		klog.InfoS("Key of tokens changed: earlier tokens are invalid")
		a.refreshSoon()
	}
}

// refreshTokenKey loads the key, and makes one if there is none.
func (a *Authority) refreshTokenKey(ctx context.Context) error {
	key, err := loadTokenKey(ctx, a.secrets)
	if err != nil {
		if a.tokenKey.Load() != nil { // the one in memory is better than none
			klog.ErrorS(err, "Key of tokens not read; going on with the one before")
			return nil
		}
		return err
	}
	a.tokenKey.Store(&key)
	return nil
}

// refreshSoon has Run call Refresh. It does not block.
func (a *Authority) refreshSoon() {
	a.due.Notify()
}
