package certificates

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
)

// revocationsSecret holds a moment per node, by the node's name: certificates with an earlier NotBefore are revoked.
//
// The moment is compared with NotBefore and not with the time of issue, because a cloudcore backdates certificates, but
// never before the last revocation that it knows of. So a certificate that a cloudcore issues without knowing of the
// revocation is revoked as well: a device cannot escape a revocation by renewing. KubeEdge's cloudcore does not
// backdate certificates.
const revocationsSecret = "edgecore-revocations"

const (
	// maxRevocations limits the Secret, in bytes of names and moments. The API server's limit is 1 MiB.
	maxRevocations = 768 << 10
	// longestLifetime is the minimum time that a revocation is kept: no certificate that it affects lives longer.
	longestLifetime = 10 * 365 * 24 * time.Hour
	// maxAhead is how far in the future a revocation may be and still be the start of the next certificate or
	// revocation.
	maxAhead = 3 * time.Second
)

// unreadable replaces a moment that cannot be read: every certificate is older.
var unreadable = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// revocations maps nodes to moments. The map is never changed.
type revocations map[string]time.Time

func parseRevocations(data map[string][]byte) revocations {
	r := make(revocations, len(data))
	for node, text := range data {
		moment, err := time.Parse(time.RFC3339, string(text))
		if err != nil {
			moment = unreadable
		}
		r[node] = moment.Truncate(time.Second)
	}
	return r
}

// RevokedError means that a certificate or token is older than the revocation of its node.
type RevokedError struct {
	Node string
	// Since is when the node was revoked.
	Since time.Time
}

func (e *RevokedError) Error() string {
	if e.Since.Equal(unreadable) {
		return fmt.Sprintf("node %s is revoked, and its entry in the secret %s cannot be read: run `cloudcore revoke "+
			"%s` again",
			e.Node, revocationsSecret, e.Node)
	}
	return fmt.Sprintf("node %s was revoked at %s: if this device is to be that node, get a token with `cloudcore "+
		"gettoken --node %s` "+
		"and run `edgecore join` with it on the device", e.Node, e.Since.UTC().Format(time.RFC3339), e.Node)
}

// check returns a *RevokedError if a certificate is too old.
func (r revocations) check(node string, cert *x509.Certificate) error {
	if since, ok := r[node]; ok && cert.NotBefore.Before(since) {
		return &RevokedError{node, since}
	}
	return nil
}

// unix returns a node's moment in seconds since 1970; 0 if it was never revoked.
func (r revocations) unix(node string) int64 {
	if since, ok := r[node]; ok {
		return since.Unix()
	}
	return 0
}

// revocationMoment returns the moment to write for a node: this second, but later than the previous one, so that a
// certificate issued between two revocations does not survive the second. A moment far in the future was written by a
// machine with a wrong clock; no certificate was issued after it, so this second suffices.
func revocationMoment(before, now time.Time) time.Time {
	now = now.UTC().Truncate(time.Second)
	if ahead := before.Sub(now); ahead >= 0 && ahead <= maxAhead {
		return before.Add(time.Second).UTC()
	}
	return now
}

// Revoke revokes all certificates of a node issued until now, and all tokens for only that node made until now. Every
// running cloudcore learns of it from the Secret.
func Revoke(ctx context.Context, secrets Secrets, node string, now time.Time) (time.Time, error) {
	if faults := validation.IsDNS1123Subdomain(node); len(faults) > 0 {
		return time.Time{}, fmt.Errorf("%q is not the name of a node: %s", clipped(node), faults[0])
	}
	var moment time.Time
	_, _, err := update(ctx, secrets, revocationsSecret, func(old map[string][]byte) (map[string][]byte, error) {
		moment = revocationMoment(parseRevocations(old)[node], now)
		data := maps.Clone(old)
		if data == nil {
			data = map[string][]byte{}
		}
		data[node] = []byte(moment.Format(time.RFC3339))
		size := 0
		for name, text := range data {
			size += len(name) + len(text)
		}
		if size > maxRevocations {
			return nil,
				fmt.Errorf("secret %s holds %d nodes and has no room for another: rotate the CA (`cloudcore rotate "+
					"ca --help`), "+
					"after which the secret may be deleted", revocationsSecret, len(old))
		}
		return data, nil
	})
	return moment, err
}

// revokedSince returns the moment of one node; zero if it was never revoked.
func revokedSince(ctx context.Context, secrets Secrets, node string) (time.Time, error) {
	secret, err := secrets.Get(ctx, revocationsSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, secretError(revocationsSecret, err)
	}
	return parseRevocations(secret.Data)[node], nil
}

// loadRevocations loads all revocations when a cloudcore starts.
func (a *Authority) loadRevocations(ctx context.Context) error {
	secret, err := a.secrets.Get(ctx, revocationsSecret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		a.setRevocations(nil)
		return nil
	case err != nil:
		return secretError(revocationsSecret, err)
	}
	a.setRevocations(secret.Data)
	return nil
}

func (a *Authority) setRevocations(data map[string][]byte) {
	r := parseRevocations(data)
	for node, moment := range r {
		if moment.Equal(unreadable) {
			klog.ErrorS(errors.New("want a time in RFC 3339 form"),
				"Revocation cannot be read; all certificates of the node are refused",
				"node", node, "secret", revocationsSecret)
		}
	}
	a.revoked.Store(&r)
}

func (a *Authority) revocations() revocations { return *a.revoked.Load() }

// Check returns an error if a node's certificate is revoked, or its CA is no longer trusted. It reads only memory.
func (a *Authority) Check(node string, cert *x509.Certificate) error {
	if !a.ca.Load().signed(cert) {
		return fmt.Errorf(
			"the certificate of node %s is of a CA that the cloud no longer trusts: get a token with "+
				"`cloudcore gettoken --node %s` and run `edgecore join` with it on the device", node, node)
	}
	return a.revocations().check(node, cert)
}

// pruneRevocations drops moments older than any valid certificate.
func (a *Authority) pruneRevocations(ctx context.Context) error {
	until := a.opts.Now().Add(-max(longestLifetime, a.opts.NodeLifetime))
	old := func(r revocations) (nodes []string) {
		for node, moment := range r {
			if moment.Before(until) {
				nodes = append(nodes, node)
			}
		}
		return nodes
	}
	if len(old(a.revocations())) == 0 {
		return nil
	}
	_, _, err := update(ctx, a.secrets, revocationsSecret, func(data map[string][]byte) (map[string][]byte, error) {
		nodes := old(parseRevocations(data))
		if len(nodes) == 0 {
			return nil, nil
		}
		data = maps.Clone(data)
		for _, node := range nodes {
			delete(data, node)
		}
		return data, nil
	})
	return err
}
