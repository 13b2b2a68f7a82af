// Package certs is shared by both ends of the link: join tokens, the name in a node's certificate, certificate
// requests, and certificate files.
//
// It promises: a certificate speaks only for the node in its subject; private keys are never readable by others; and
// after a power cut either the old certificate and key are there, or the new ones.
//
// The formats are KubeEdge's (docs/wire.md, Certificates).
package certs

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The subject of a node's certificate, as Kubernetes' node authorizer requires it.
const (
	// Organization is the group of all nodes.
	Organization = "system:nodes"
	namePrefix   = "system:node:"
)

// The subject that KubeEdge gave to all nodes until 1.15: it does not name the node. Clouds write the organization like
// this; edgecores of 1.12 request it as "kubeEdge".
const (
	legacyOrganization = "KubeEdge"
	legacyCommonName   = "kubeedge.io"
)

// CommonName is the common name of a node's certificate.
func CommonName(node string) string { return namePrefix + node }

// Subject is the whole subject of a node's certificate.
func Subject(node string) pkix.Name {
	return pkix.Name{Organization: []string{Organization}, CommonName: CommonName(node)}
}

// NodeOf returns the node that a subject names.
func NodeOf(subject pkix.Name) (string, error) {
	node, ok := strings.CutPrefix(subject.CommonName, namePrefix)
	if !ok || node == "" || len(subject.Organization) == 0 || subject.Organization[0] != Organization {
		return "", fmt.Errorf("subject %q is not that of a node (O=%s, CN=%s<name>)", clip(subject.String()),
			Organization, namePrefix)
	}
	return node, nil
}

// IsLegacy reports whether a subject is the one that old KubeEdge gave to every node.
func IsLegacy(subject pkix.Name) bool {
	return subject.CommonName == legacyCommonName && len(subject.Organization) > 0 &&
		strings.EqualFold(subject.Organization[0], legacyOrganization)
}

// CheckNode makes sure that a certificate speaks for a node. With legacy, a certificate that names no node speaks for
// any.
func CheckNode(cert *x509.Certificate, node string, legacy bool) error {
	if legacy && IsLegacy(cert.Subject) {
		return nil
	}
	of, err := NodeOf(cert.Subject)
	switch {
	case err != nil:
		return err
	case of != node:
		return fmt.Errorf("the certificate is that of node %q and cannot speak for node %q", clip(of), clip(node))
	}
	return nil
}

// VerifyClient checks that a certificate is signed by one of the CAs, is meant for a client, and is valid at
// a time.
func VerifyClient(cert *x509.Certificate, cas *x509.CertPool, now time.Time) error {
	_, err := cert.Verify(x509.VerifyOptions{
		Roots: cas, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// Pool makes a pool of certificates.
func Pool(cas ...*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, ca := range cas {
		pool.AddCert(ca)
	}
	return pool
}

// Fits reports whether a certificate is for a key.
func Fits(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

// RenewAt returns the time after a share of a certificate's lifetime.
func RenewAt(cert *x509.Certificate, share float64) time.Time {
	return cert.NotBefore.Add(time.Duration(float64(cert.NotAfter.Sub(cert.NotBefore)) * share))
}

// AtLeast returns a clock that never reports a time before the bounds: a device without a battery-backed clock starts
// in 1970, but its own certificate proves that it is later.
func AtLeast(now func() time.Time, bounds ...time.Time) func() time.Time {
	if len(bounds) == 0 {
		return now
	}
	bound := slices.MaxFunc(bounds, time.Time.Compare)
	return func() time.Time {
		if t := now(); t.After(bound) {
			return t
		}
		return bound
	}
}

// maxShown limits how much foreign text an error repeats.
const maxShown = 100

func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}

var errNoEC = errors.New("only EC keys are taken (ECDSA, in the forms SEC1 or PKCS#8)")
