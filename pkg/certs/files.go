package certs

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

const (
	fileMode   = 0o600
	folderMode = 0o700
	// maxFile limits a PEM file.
	maxFile = 1 << 20
	// pending is the suffix of a file that will replace another.
	pending = ".new"
)

// Files are the paths of an identity, all PEM: the CA, the node's certificate, and its key.
type Files struct{ CA, Cert, Key string }

// Identity is a node's certificate and key, and the CAs it trusts.
type Identity struct {
	// CAs are the trusted CAs; one, unless more were put into the file.
	CAs []*x509.Certificate
	// Chain is the node's certificate and the rest of its file.
	Chain []*x509.Certificate
	Key   *ecdsa.PrivateKey
}

// Cert is the node's certificate.
func (i *Identity) Cert() *x509.Certificate { return i.Chain[0] }

// Pool is the CAs' pool.
func (i *Identity) Pool() *x509.CertPool { return Pool(i.CAs...) }

// TLS returns the certificate and key for crypto/tls.
func (i *Identity) TLS() tls.Certificate {
	c := tls.Certificate{PrivateKey: i.Key, Leaf: i.Cert()}
	for _, cert := range i.Chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

// ClientTLS returns the configuration with which the node dials its cloud. Its clock is never before its certificates'
// NotBefore: a device whose clock starts in 1970 can dial.
func (i *Identity) ClientTLS(now func() time.Time) *tls.Config {
	own := i.TLS()
	bounds := []time.Time{i.Cert().NotBefore}
	for _, ca := range i.CAs {
		bounds = append(bounds, ca.NotBefore)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: i.Pool(), Time: AtLeast(now, bounds...),
		// Send the certificate whichever CAs the cloud names: without it the cloud refuses.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil },
	}
}

// Load reads the identity. It completes a Save that a power cut interrupted. A missing file gives os.ErrNotExist;
// expiry is not checked.
func (f Files) Load() (*Identity, error) {
	key, err := readKey(f.Key)
	if err != nil {
		return nil, err
	}
	chain, err := readCerts(f.Cert)
	if err != nil || !Fits(chain[0], key) {
		next, errNext := readCerts(f.Cert + pending)
		switch {
		case errNext == nil && Fits(next[0], key):
			if err := finish(f.Cert); err != nil {
				return nil, err
			}
			chain = next
		case err != nil:
			return nil, err
		default:
			return nil, fmt.Errorf("certificate %s does not belong to key %s", f.Cert, f.Key)
		}
	}
	cas, err := f.loadCA(chain[0])
	if err != nil {
		return nil, err
	}
	return &Identity{CAs: cas, Chain: chain, Key: key}, nil
}

// loadCA reads the CA, and uses the pending one if only that signed the certificate.
func (f Files) loadCA(cert *x509.Certificate) ([]*x509.Certificate, error) {
	cas, err := readCerts(f.CA)
	if err == nil && signedBy(cert, cas) {
		return cas, nil
	}
	if next, errNext := readCerts(f.CA + pending); errNext == nil && signedBy(cert, next) {
		return next, finish(f.CA)
	}
	return cas, err
}

func signedBy(cert *x509.Certificate, cas []*x509.Certificate) bool {
	for _, ca := range cas {
		if cert.CheckSignatureFrom(ca) == nil {
			return true
		}
	}
	return false
}

// Save writes the identity, with mode 0600, and 0700 for folders that it creates. All three files are on the disk
// before the first is replaced, so that Load can always finish. A nil CA leaves that file.
func (f Files) Save(ca, cert []byte, key *ecdsa.PrivateKey) error {
	keyPEM, err := EncodeKeyPEM(key)
	if err != nil {
		return err
	}
	// The key is first: until it is replaced everything is old; after that Load finds the matching files.
	type part struct {
		name string
		data []byte
	}
	parts := []part{{f.Key, keyPEM}, {f.Cert, EncodeCertPEM(cert)}}
	if ca != nil {
		parts = append(parts, part{f.CA, EncodeCertPEM(ca)})
	}
	for _, p := range parts {
		if err := writePending(p.name, p.data); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if err := finish(p.name); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile writes a file atomically: after a power cut it has its old content or the new one. Only its owner can read
// it.
func WriteFile(name string, data []byte) error {
	if err := writePending(name, data); err != nil {
		return err
	}
	return finish(name)
}

// Remove removes the files and the remains of an interrupted Save. Missing files are not an error.
func (f Files) Remove() error {
	var errs []error
	for _, name := range []string{f.Key, f.Cert, f.CA} {
		for _, n := range []string{name, name + pending} {
			if err := os.Remove(n); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// ClockBound returns a time that is certainly past: the newest NotBefore of the certificates.
func (f Files) ClockBound() time.Time {
	var bound time.Time
	for _, name := range []string{f.CA, f.Cert} {
		list, err := readCerts(name)
		if err != nil {
			continue
		}
		for _, c := range list {
			if c.NotBefore.After(bound) {
				bound = c.NotBefore
			}
		}
	}
	return bound
}

func writePending(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), folderMode); err != nil {
		return err
	}
	// A leftover may have other modes, or be a link: remove it first.
	if err := os.Remove(name + pending); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name+pending, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// finish renames a pending file. If it is gone, a concurrent Load renamed it.
func finish(name string) error {
	if err := os.Rename(name+pending, name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readCerts(name string) ([]*x509.Certificate, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	list, err := ParseCertsPEM(data)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", name, err)
	}
	return list, nil
}

func readKey(name string) (*ecdsa.PrivateKey, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	key, err := ParseKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	return key, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d KiB", name, maxFile>>10)
	}
	return data, err
}

// ReadPair reads a certificate and its key from two PEM files that an administrator provides, the first of each. If
// both are missing, all results are nil; if only one is, that is an error.
func ReadPair(certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	if certFile == "" && keyFile == "" {
		return nil, nil, nil
	}
	certs, errCert := readCerts(certFile)
	key, errKey := readKey(keyFile)
	if errors.Is(errCert, os.ErrNotExist) && errors.Is(errKey, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err := errors.Join(errCert, errKey); err != nil {
		return nil, nil, err
	}
	if !Fits(certs[0], key) {
		return nil, nil, fmt.Errorf("certificate %s does not belong to key %s", certFile, keyFile)
	}
	return certs[0], key, nil
}
