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

// A holder is the device that joined with a token, as all its certificates name it: the one that it joined with, and
// those that this one was renewed to. It is the serialNumber of the subject, which is an attribute of a name (RFC 5280)
// and not the certificate's own number. It is a valid value for a label.
var holderForm = regexp.MustCompile(`^([bg])-([0-9]{1,12})-[0-9a-f]{16}$`)

// NewHolder makes the holder of a device that joins. bound: its token is for its node alone.
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

// HolderOf returns the holder that a certificate names; empty if it is of a cloud that names none.
func HolderOf(cert *x509.Certificate) string {
	if !holderForm.MatchString(cert.Subject.SerialNumber) {
		return ""
	}
	return cert.Subject.SerialNumber
}

// Supersedes reports whether a holder takes the place of another one: it joined later, with a token for its node alone.
func Supersedes(holder, other string) bool {
	is := holderForm.FindStringSubmatch(holder)
	return is != nil && is[1] == "b" && joinedAt(holder) > joinedAt(other)
}

// joinedAt is when a holder joined, in seconds since 1970; 0 for what is not a holder.
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
