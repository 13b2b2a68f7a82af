package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
)

// The types of PEM blocks.
const (
	pemCert = "CERTIFICATE"
	pemKey  = "EC PRIVATE KEY"
)

const (
	// MaxRequest limits a certificate request; one with an EC key has about 400 bytes.
	MaxRequest = 64 << 10
	minRSA     = 2048
	maxRSA     = 8192
)

// NewKey makes a private key on the curve P-256.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// EncodeKey gives the DER form that KubeEdge keeps (SEC1).
func EncodeKey(key *ecdsa.PrivateKey) ([]byte, error) { return x509.MarshalECPrivateKey(key) }

// ParseKey reads a private key in DER form: SEC1 as KubeEdge writes it, or PKCS#8.
func ParseKey(der []byte) (*ecdsa.PrivateKey, error) {
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	any, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("not a private key: %w", errNoEC)
	}
	key, ok := any.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errNoEC
	}
	return key, nil
}

// ParseKeyPEM reads the first private key of a PEM file.
func ParseKeyPEM(data []byte) (*ecdsa.PrivateKey, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == pemKey || block.Type == "PRIVATE KEY" {
			return ParseKey(block.Bytes)
		}
	}
	return nil, fmt.Errorf("holds no PEM block of a private key: %w", errNoEC)
}

// ParseCertsPEM reads all certificates of a PEM file; there is at least one if there is no error.
func ParseCertsPEM(data []byte) ([]*x509.Certificate, error) {
	var list []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != pemCert {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		list = append(list, cert)
	}
	if len(list) == 0 {
		return nil, errors.New("holds no PEM block of a certificate")
	}
	return list, nil
}

// EncodeCertPEM is the PEM form of a certificate.
func EncodeCertPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der})
}

// EncodeKeyPEM is the PEM form of a private key, as KubeEdge writes it.
func EncodeKeyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := EncodeKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// NewRequest makes a request for a node's certificate, in DER form. KubeEdge's edgecore adds a country and a city to
// the subject, which every cloud ignores.
func NewRequest(node string, key crypto.Signer) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: Subject(node)}, key)
}

// ParseRequest parses a request in DER form, and checks that its author has the key.
func ParseRequest(der []byte) (*x509.CertificateRequest, error) {
	switch {
	case len(der) == 0:
		return nil, errors.New("the certificate request is empty")
	case len(der) > MaxRequest:
		return nil, fmt.Errorf("the certificate request has more than %d KiB", MaxRequest>>10)
	}
	req, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("not a certificate request in DER form: %w", err)
	}
	if err := checkPublicKey(req.PublicKey); err != nil {
		return nil, err
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the certificate request is not signed by its key: %w", err)
	}
	return req, nil
}

func checkPublicKey(public crypto.PublicKey) error {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() || key.Curve == elliptic.P521() {
			return nil
		}
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n >= minRSA && n <= maxRSA {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	}
	return fmt.Errorf("the certificate request's key is invalid; want EC (P-256, P-384, P-521), Ed25519 or RSA of %d "+
		"to %d bits", minRSA, maxRSA)
}

// NewSerial makes a serial number as KubeEdge does: random, below 2^63, above 0.
func NewSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).SetUint64(1<<63-1))
	if err != nil {
		return nil, err
	}
	return n.Add(n, big.NewInt(1)), nil
}
