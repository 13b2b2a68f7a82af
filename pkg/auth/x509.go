package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

const (
	// refreshPace is how often the cluster may be asked for its CAs on account of who comes.
	refreshPace = time.Minute
	// caAge is how long CAs are taken for the cluster's without asking again: a CA that the cluster no longer trusts is
	// soon not trusted here either. The cluster is asked only when callers come.
	caAge = time.Hour
)

// CAOptions say where the CAs come from that sign clients' certificates.
type CAOptions struct {
	// File is one of the configuration; "" is none. It is read again when it has changed.
	File string
	// Cluster asks for the cluster's own, in PEM; nil without a cluster. It is called when a caller's certificate is
	// not signed by a known CA, or after an hour, but at most once a minute.
	Cluster func(ctx context.Context) ([]byte, error)
	// Now is the wall clock, never before the node's own certificate.
	Now func() time.Time
}

// CAs are those that sign clients' certificates.
type CAs struct {
	opts CAOptions

	mu      sync.Mutex
	file    pool
	stamp   time.Time // the file's
	size    int64
	cluster pool
	// asked and learned are the times of the last question to the cluster and of its last answer.
	asked, learned time.Time
}

// pool is a set of certificates; nil is none.
type pool = *x509.CertPool

// NewCAs makes the set; it reads nothing yet.
func NewCAs(opts CAOptions) *CAs {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &CAs{opts: opts}
}

// errNoCA: the CA of client certificates is not known yet.
var errNoCA = errors.New("this node has no client CA")

// verify checks a certificate and those that it came with.
func (c *CAs) verify(ctx context.Context, chain []*x509.Certificate) error {
	if c.old() {
		c.refresh(ctx)
	}
	err := c.verifyChain(chain)
	if err == nil || !unknownSigner(err) || !c.refresh(ctx) {
		return err
	}
	return c.verifyChain(chain)
}

// Known reports whether a known CA has signed a certificate, chain being it and those that it came with. It does not
// ask the cluster.
func (c *CAs) Known(chain []*x509.Certificate) bool { return c.verifyChain(chain) == nil }

// old reports whether it is time to ask the cluster again.
func (c *CAs) old() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.learned.IsZero() && time.Since(c.learned) > caAge
}

// unknownSigner tells an error that another CA would mend.
func unknownSigner(err error) bool {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	return unknown || errors.Is(err, errNoCA)
}

func (c *CAs) verifyChain(chain []*x509.Certificate) error {
	between := certs.Pool(chain[1:]...)
	err := errNoCA
	for _, roots := range c.pools() {
		_, e := chain[0].Verify(x509.VerifyOptions{
			Roots:         roots,
			Intermediates: between,
			CurrentTime:   c.opts.Now(),
			KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if e == nil {
			return nil
		}
		if errors.Is(err, errNoCA) || unknownSigner(err) {
			err = e
		}
	}
	return err
}

// pools are those that are known now.
func (c *CAs) pools() []pool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readFile()
	return slices.DeleteFunc([]pool{c.file, c.cluster}, func(p pool) bool { return p == nil })
}

// readFile reads the file when it has changed. A file that is invalid leaves what there was before.
func (c *CAs) readFile() {
	if c.opts.File == "" {
		return
	}
	info, err := os.Stat(c.opts.File)
	if err != nil || info.ModTime().Equal(c.stamp) && info.Size() == c.size {
		return
	}
	data, err := os.ReadFile(c.opts.File)
	if err != nil {
		return
	}
	if list, err := certs.ParseCertsPEM(data); err == nil {
		c.file, c.stamp, c.size = certs.Pool(list...), info.ModTime(), info.Size()
	}
}

// CheckFile says what is wrong with a file of CAs.
func CheckFile(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if _, err := certs.ParseCertsPEM(data); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// refresh asks for the cluster's CA, and reports whether it has changed.
func (c *CAs) refresh(ctx context.Context) bool {
	c.mu.Lock()
	if c.opts.Cluster == nil || !c.asked.IsZero() && time.Since(c.asked) < refreshPace {
		c.mu.Unlock()
		return false
	}
	c.asked = time.Now()
	c.mu.Unlock()
	return c.Learn(ctx) == nil
}

// Learn asks for the cluster's CA now: the cloud, or what it said before while it cannot be reached.
func (c *CAs) Learn(ctx context.Context) error {
	if c.opts.Cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	data, err := c.opts.Cluster(ctx)
	if err != nil {
		return err
	}
	list, err := certs.ParseCertsPEM(data)
	if err != nil {
		return fmt.Errorf("the cluster's client CA: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster, c.learned = certs.Pool(list...), time.Now()
	return nil
}

// byCertificate is who a request's certificate says; nil without an error where it shows none.
func (a *Authority) byCertificate(r *http.Request) (*User, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	if a.opts.CAs == nil {
		return nil, errNoCA
	}
	if err := a.opts.CAs.verify(r.Context(), r.TLS.PeerCertificates); err != nil {
		return nil, err
	}
	subject := r.TLS.PeerCertificates[0].Subject
	if subject.CommonName == "" {
		return nil, errors.New("the certificate has no common name in its subject")
	}
	groups := slices.Clone(subject.Organization)
	return &User{Name: subject.CommonName, Groups: append(groups[:min(len(groups), maxGroups)], authenticated)}, nil
}
