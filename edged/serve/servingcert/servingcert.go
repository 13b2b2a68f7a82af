// Package servingcert keeps the certificate of the node's authenticated port. It is, in this order: the one of the
// configuration (tlsCertFile), one that the cluster signed (serverTLSBootstrap), or one that this node signed itself,
// which keeps others from listening though not from pretending.
//
// It promises that there always is a certificate, whatever the link, the disk or the clock do; that keys are never
// written where others can read them; and that a certificate in use is replaced only by one whose key is here.
package servingcert

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Names of files; none is a kubelet's, which may have been on the device before.
const (
	selfCert   = "edgecore-self.crt"
	selfKey    = "edgecore-self.key"
	signedCert = "edgecore-server.crt"
	signedKey  = "edgecore-server.key"
	pendingKey = "edgecore-server-pending.key"
)

// Dir is where the port's own keys and certificates lie below a node's root folder.
func Dir(root string) string { return filepath.Join(root, "pki") }

// Files are all that may lie there.
func Files(root string) []string {
	var files []string
	for _, name := range []string{selfCert, selfKey, signedCert, signedKey, pendingKey} {
		files = append(files, filepath.Join(Dir(root), name))
	}
	return files
}

const (
	// selfLife is how long a certificate of our own lasts; selfLeft is how long before its end there is a new one.
	selfLife = 10 * 365 * 24 * time.Hour
	selfLeft = 30 * 24 * time.Hour
	// slack is how far behind this node's clock another's may be.
	slack = time.Hour
)

// Options say which certificate.
type Options struct {
	// Dir is where the node's own keys and certificates lie.
	Dir string
	// CertFile and KeyFile are those of the configuration; "" is none. They are read again when they have changed.
	CertFile, KeyFile string
	// Node is the node's name.
	Node string
	// IPs are the node's addresses as they are now.
	IPs func() []string
	// Cluster signs; nil signs nothing.
	Cluster Cluster
	// Now is the wall clock, never before the node's own certificate.
	Now func() time.Time
	// Fault is called with what is wrong with the configured certificate or the cluster's, and with nil when nothing
	// is.
	Fault func(error)
}

// Certificate is the one of the port. Its methods may be called from any goroutine.
type Certificate struct {
	opts Options
	// wake requests a certificate from the cluster at once.
	wake notify.Signal

	mu     sync.Mutex
	given  *tls.Certificate // of the configuration
	stamps [2]stamp
	signed *tls.Certificate
	self   *tls.Certificate
}

// stamp tells a file from its next version.
type stamp struct {
	at   time.Time
	size int64
}

// New makes a certificate; it reads and writes nothing yet.
func New(opts Options) *Certificate {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Fault == nil {
		opts.Fault = func(error) {}
	}
	return &Certificate{opts: opts, wake: notify.NewSignal()}
}

// Wake requests at once a certificate that the cluster has not signed yet: there is a link again.
func (c *Certificate) Wake() {
	c.wake.Notify()
}

// Get is tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opts.CertFile != "" {
		c.readGiven()
		if c.given != nil {
			return c.given, nil
		}
	}
	now := c.opts.Now()
	if c.signed != nil && now.Before(c.signed.Leaf.NotAfter) {
		return c.signed, nil
	}
	if c.self == nil || now.After(c.self.Leaf.NotAfter.Add(-selfLeft)) || now.Before(c.self.Leaf.NotBefore) {
		if err := c.readSelf(now); err != nil {
			return nil, err
		}
	}
	return c.self, nil
}

// readGiven reads the files of the configuration when they have changed. Invalid files leave the previous certificate
// in place.
func (c *Certificate) readGiven() {
	var now [2]stamp
	for i, name := range []string{c.opts.CertFile, c.opts.KeyFile} {
		if info, err := os.Stat(name); err == nil {
			now[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	if c.given != nil && now == c.stamps {
		return
	}
	pair, err := tls.LoadX509KeyPair(c.opts.CertFile, c.opts.KeyFile)
	if err != nil {
		c.opts.Fault(fmt.Errorf("tlsCertFile %s with tlsPrivateKeyFile %s: %w", c.opts.CertFile, c.opts.KeyFile, err))
		return
	}
	c.given, c.stamps = &pair, now
	c.opts.Fault(nil)
}

// readSelf reads the node's own certificate, or makes one. If the disk cannot be written, the certificate is kept in
// memory.
func (c *Certificate) readSelf(now time.Time) error {
	cert, key := filepath.Join(c.opts.Dir, selfCert), filepath.Join(c.opts.Dir, selfKey)
	chain, old, err := certs.ReadPair(cert, key)
	if err == nil && chain != nil && certs.Fits(chain, old) && now.After(chain.NotBefore) &&
		now.Before(chain.NotAfter.Add(-selfLeft)) {
		c.self = pair(old, chain)
		return nil
	}
	fresh, err := certs.NewKey()
	if err != nil {
		return err
	}
	leaf, err := c.signSelf(fresh, now)
	if err != nil {
		return err
	}
	c.self = pair(fresh, leaf)
	text, err := certs.EncodeKeyPEM(fresh)
	if err != nil {
		return err
	}
	if err := save(c.opts.Dir, map[string][]byte{selfKey: text, selfCert: certs.EncodeCertPEM(leaf.Raw)}, selfKey,
		selfCert); err != nil {
		klog.ErrorS(err, "Certificate of the authenticated port not stored; the next start creates another one")
	}
	return nil
}

// signSelf makes a certificate that is its own CA.
func (c *Certificate) signSelf(key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	serial, err := certs.NewSerial()
	if err != nil {
		return nil, err
	}
	names, ips := c.names()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: c.opts.Node + "@edgecore"},
		NotBefore:             now.Add(-slack),
		NotAfter:              now.Add(selfLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
		DNSNames:              names,
		IPAddresses:           ips,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// names are what the node is called and where it is.
func (c *Certificate) names() (dns []string, ips []net.IP) {
	dns = []string{c.opts.Node}
	if host, err := os.Hostname(); err == nil && host != "" && host != c.opts.Node && len(host) < 254 {
		dns = append(dns, host)
	}
	for _, text := range c.opts.IPs() {
		if ip := net.ParseIP(text); ip != nil {
			ips = append(ips, ip)
		}
	}
	return dns, ips
}

func pair(key *ecdsa.PrivateKey, chain ...*x509.Certificate) *tls.Certificate {
	c := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, cert := range chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

// save writes files in an order: a certificate after its key.
func save(dir string, files map[string][]byte, order ...string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range order {
		if err := certs.WriteFile(filepath.Join(dir, name), files[name]); err != nil {
			return err
		}
	}
	return nil
}

// speaksFor reports whether a certificate has all the names and addresses of the node.
func speaksFor(cert *x509.Certificate, names []string, ips []net.IP) bool {
	for _, name := range names {
		if !slices.Contains(cert.DNSNames, name) {
			return false
		}
	}
	for _, ip := range ips {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// Run keeps the cluster's certificate until ctx ends; without a cluster that signs there is nothing to do.
func (c *Certificate) Run(ctx context.Context) error {
	if c.opts.CertFile != "" || c.opts.Cluster == nil {
		return nil
	}
	c.readSigned()
	for backoff := retry.NewBackoff(firstRetry, lastRetry); ; {
		pause, err := c.step(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			pause = backoff.Next()
		} else {
			backoff.Reset()
		}
		c.opts.Fault(err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-c.wake:
			timer.Stop()
			backoff.Reset()
		}
	}
}
