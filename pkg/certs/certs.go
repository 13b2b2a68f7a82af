// Package certs is what both ends of the link know of certificates: the token that a device joins with, the
// name that a node's certificate carries, requests for one, and the files that it lies in.
//
// It promises: a certificate speaks for one node only, the one of its subject; private keys are never written
// where others can read them; and files are replaced so that after a power cut either the old certificate and
// its key are there, or the new ones.
//
// The forms are KubeEdge's (docs/wire.md, Certificates).
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

// The subject of a node's certificate, as Kubernetes' node authorizer wants it.
const (
	// Organization is the group of all nodes.
	Organization = "system:nodes"
	namePrefix   = "system:node:"
)

// The subject that KubeEdge gave to every node alike until 1.15: it does not say which node it is. Clouds write the
// organization like this, the edges of 1.12 ask for it as "kubeEdge".
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

// CheckNode makes sure that a certificate speaks for a node. With legacy, those that do not say which node
// they are may speak for any.
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

// RenewAt is the time at which a share of a certificate's life is over.
func RenewAt(cert *x509.Certificate, share float64) time.Time {
	return cert.NotBefore.Add(time.Duration(float64(cert.NotAfter.Sub(cert.NotBefore)) * share))
}

// AtLeast returns a clock that never says less than the bounds: a device without a battery for its clock
// starts in 1970, but knows that it is not before its own certificate.
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

// maxShown bounds what an error repeats of what came from elsewhere.
const maxShown = 100

func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}

var errNoEC = errors.New("only EC keys are taken (ECDSA, in the forms SEC1 or PKCS#8)")
