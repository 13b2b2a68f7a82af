package certificates

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	caName     = "KubeEdge"
	caLifetime = 100 * 364 * 24 * time.Hour
	// serverLifetime is short compared with KubeEdge's 100 years, since cloudcore renews the certificate while it runs.
	serverLifetime = 2 * 365 * 24 * time.Hour
	// serverRenew is the share of the lifetime after which the certificate is renewed.
	serverRenew = 2.0 / 3
	// backdate starts a certificate's validity early: a device's clock may be a little behind.
	backdate = 10 * time.Minute
)

// newCA makes a CA as KubeEdge does, but with a unique serial number.
func newCA(now time.Time) (pair, error) {
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: caName},
		KeyUsage: x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
		},
		BasicConstraintsValid: true, IsCA: true,
	}
	key, err := certs.NewKey()
	if err != nil {
		return pair{}, err
	}
	cert, err := sign(template, template, key.Public(), key, now, caLifetime)
	return pair{cert, key}, err
}

// newServer makes a certificate for this cloud's addresses, and those of the previous certificate: other replicas may
// use them. They are dropped if that certificate has expired.
func (a *Authority) newServer(before *x509.Certificate) (pair, error) {
	addresses := slices.Clone(a.opts.Addresses)
	if before != nil && a.opts.Now().Before(certs.RenewAt(before, serverRenew)) && a.ca.Load().signed(before) {
		addresses = append(addresses, sansOf(before)...)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: caName, Organization: []string{caName}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			if !slices.ContainsFunc(template.IPAddresses, ip.Equal) {
				template.IPAddresses = append(template.IPAddresses, ip)
			}
		} else if address != "" && !slices.Contains(template.DNSNames, address) {
			template.DNSNames = append(template.DNSNames, address)
		}
	}
	key, err := certs.NewKey()
	if err != nil {
		return pair{}, err
	}
	ca := a.ca.Load()
	cert, err := sign(template, ca.cert, key.Public(), ca.key, a.opts.Now(), serverLifetime)
	return pair{cert, key}, err
}

// SignNode makes a node's certificate, in DER form. It uses only the key of the request: the subject is the node's, and
// the only usage is client authentication.
func (a *Authority) SignNode(node string, req *x509.CertificateRequest) ([]byte, error) {
	return a.signNode(node, req, grant{})
}

// signNode makes a certificate that is not revoked: it starts no earlier than the node's last revocation known here or
// to the token.
func (a *Authority) signNode(node string, req *x509.CertificateRequest, g grant) ([]byte, error) {
	revoked := a.notBefore(node, g)
	now := a.opts.Now()
	if ahead := revoked.Sub(now); ahead > 0 {
		return nil, refuse(http.StatusServiceUnavailable,
			"node %s was revoked by a machine whose clock is ahead of the cloud's: %s, here it is %s. "+
				"Try again in %s, or revoke the node again where the clock is right", node,
			revoked.UTC().Format(time.RFC3339),
			now.UTC().Format(time.RFC3339), ahead.Truncate(time.Second)+time.Second)
	}
	template := &x509.Certificate{
		Subject:     certs.Subject(node),
		KeyUsage:    x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	template.NotBefore, template.Subject.SerialNumber = revoked, g.holder
	ca := a.ca.Load()
	cert, err := sign(template, ca.cert, req.PublicKey, ca.key, now, a.opts.NodeLifetime)
	if err != nil {
		return nil, err
	}
	return cert.Raw, nil
}

// notBefore returns a node's last known revocation: its certificates start no earlier.
func (a *Authority) notBefore(node string, g grant) time.Time {
	if since := a.revocations()[node]; since.After(g.revoked) {
		return since
	}
	return g.revoked
}

// awaitNotBefore waits for a moment a second or two in the future: a node revoked twice in a second is revoked in the
// next one.
func (a *Authority) awaitNotBefore(ctx context.Context, node string, g grant) {
	ahead := a.notBefore(node, g).Sub(a.opts.Now())
	if ahead <= 0 || ahead > maxAhead {
		return
	}
	retry.Sleep(ctx, ahead)
}

// sign sets the serial number and the validity. NotBefore of the template is the earliest start. The certificate
// expires no later than the CA that signs it.
func sign(
	template, ca *x509.Certificate, public crypto.PublicKey, key crypto.Signer, now time.Time, lifetime time.Duration,
) (*x509.Certificate, error) {
	var err error
	if template.SerialNumber, err = certs.NewSerial(); err != nil {
		return nil, err
	}
	if begin := now.Add(-backdate); begin.After(template.NotBefore) {
		template.NotBefore = begin
	}
	template.NotAfter = now.Add(lifetime)
	if ca != template && template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// checkCA returns why a pair cannot be a CA, or nil.
func (p pair) checkCA(now time.Time) error {
	switch {
	case !p.cert.IsCA || p.cert.KeyUsage != 0 && p.cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%q is not a CA certificate", p.cert.Subject)
	case now.After(p.cert.NotAfter):
		return fmt.Errorf("it expired at %s", p.cert.NotAfter.Format(time.RFC3339))
	case now.Before(p.cert.NotBefore):
		return fmt.Errorf("it is valid from %s, and this machine's clock says %s: set the clock",
			p.cert.NotBefore.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	return nil
}

// serverFaults returns why a server certificate must be replaced.
func serverFaults(cert *x509.Certificate, cas *x509.CertPool, addresses []string, now time.Time) []string {
	var faults []string
	_, err := cert.Verify(x509.VerifyOptions{
		Roots: cas, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		faults = append(faults, "it is valid from "+cert.NotBefore.Format(time.RFC3339)+" to "+
			cert.NotAfter.Format(time.RFC3339))
	case err != nil:
		faults = append(faults, err.Error())
	case now.After(certs.RenewAt(cert, serverRenew)):
		faults = append(faults, "it ends at "+cert.NotAfter.Format(time.RFC3339))
	}
	for _, address := range addresses {
		host := address
		if isIP(address) {
			host = "[" + address + "]"
		}
		if address != "" && cert.VerifyHostname(host) != nil {
			faults = append(faults, "it is not for "+address)
		}
	}
	return faults
}

// sansOf returns the addresses that a certificate is for.
func sansOf(cert *x509.Certificate) []string {
	var list []string
	for _, ip := range cert.IPAddresses {
		list = append(list, ip.String())
	}
	for _, name := range cert.DNSNames {
		if name != "" {
			list = append(list, name)
		}
	}
	return list
}
