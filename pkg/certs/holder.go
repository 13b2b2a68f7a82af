package certs

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// HolderLabel is the label of a Node that names its holder. Kubernetes keeps nodes from changing labels of this kind on
// themselves (NodeRestriction).
const HolderLabel = "edgecore.io.node-restriction.kubernetes.io/holder"

// A holder identifies the device that joined with a token, in all its certificates: the first one and its renewals. It
// is the serialNumber of the subject, an attribute of a name (RFC 5280) and not the certificate's serial number. It is
// a valid label value.
var holderForm = regexp.MustCompile(`^([bg])-([0-9]{1,12})-[0-9a-f]{16}$`)

// NewHolder makes the holder of a joining device. bound: its token is only for its node.
func NewHolder(bound bool, joined time.Time) (string, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", err
	}
	kind := "g"
	if bound {
		kind = "b"
	}
	return fmt.Sprintf("%s-%d-%s", kind, joined.Unix(), hex.EncodeToString(id[:])), nil
}

// HolderOf returns the holder in a certificate; empty if its cloud sets none.
func HolderOf(cert *x509.Certificate) string {
	if !holderForm.MatchString(cert.Subject.SerialNumber) {
		return ""
	}
	return cert.Subject.SerialNumber
}

// Supersedes reports whether a holder replaces another: it joined later, with a token only for its node.
func Supersedes(holder, other string) bool {
	is := holderForm.FindStringSubmatch(holder)
	return is != nil && is[1] == "b" && joinedAt(holder) > joinedAt(other)
}

// joinedAt returns when a holder joined, in seconds since 1970; 0 if invalid.
func joinedAt(holder string) int64 {
	is := holderForm.FindStringSubmatch(holder)
	if is == nil {
		return 0
	}
	seconds, err := strconv.ParseInt(is[2], 10, 64)
	if err != nil {
		return 0
	}
	return seconds
}
