// Package devicecert has the certificates of the API endpoint: a CA that only this device has, and the certificate that
// the endpoint serves. Pods get the CA in their ca.crt, beside the cluster's.
//
// It promises: the CA is made once and stays, since pods hold it; its key is never readable by others, and leaves the
// device in no message; and both are valid whatever the device's clock says, also in 1970. The served certificate has
// no file: it is made when the agent starts, when a name comes or goes, and before it expires.
//
// The CA has no name constraints. A name that comes later, such as another ClusterIP, would make clients that hold the
// CA refuse the endpoint.
package devicecert

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

const (
	caCert = "edge-api-ca.crt"
	caKey  = "edge-api-ca.key"
	// servedLife is how long a served certificate lasts; servedLeft is how long before its end there is a new one.
	servedLife = 365 * 24 * time.Hour
	servedLeft = 30 * 24 * time.Hour
)

// Files are the files of the CA in a folder.
func Files(dir string) []string {
	return []string{filepath.Join(dir, caCert), filepath.Join(dir, caKey)}
}

// notBefore and notAfter are the life of the CA: no clock is before or after them.
func notBefore() time.Time { return time.Unix(0, 0).UTC() }
func notAfter() time.Time  { return time.Date(2199, 12, 31, 23, 59, 59, 0, time.UTC) }

// Names are what the endpoint is called.
type Names struct {
	DNS []string
	IPs []netip.Addr
}

// NamesOf returns all names of an endpoint that listens on addresses. clusterIPs are those of the Service
// default/kubernetes; domain is the cluster's, and may be empty.
func NamesOf(addresses, clusterIPs []netip.Addr, domain string) Names {
	n := Names{DNS: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"}}
	if domain != "" {
		n.DNS = append(n.DNS, "kubernetes.default.svc."+domain)
	}
	n.IPs = slices.Concat(addresses, clusterIPs,
		[]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()})
	for i, ip := range n.IPs {
		n.IPs[i] = ip.Unmap().WithZone("")
	}
	smallsort.SortFunc(n.IPs, netip.Addr.Compare)
	n.IPs = slices.DeleteFunc(slices.Compact(n.IPs), func(ip netip.Addr) bool {
		return !ip.IsValid() || ip.IsUnspecified()
	})
	return n
}

func (n Names) equal(o Names) bool { return slices.Equal(n.DNS, o.DNS) && slices.Equal(n.IPs, o.IPs) }

// Options make a Certificate. All are required.
type Options struct {
	// Dir is where the CA is.
	Dir string
	// Node is the name of the node.
	Node string
	// Names returns the names of the endpoint as they are now. It is called for each handshake.
	Names func() Names
	// Now is the wall clock.
	Now func() time.Time
}

// Certificate is the CA, and what it signs. Its methods may be called from any goroutine.
type Certificate struct {
	opts Options
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey

	mu     sync.Mutex
	served *tls.Certificate // nil before the first handshake
	names  Names            // of served
}

// Open reads the CA, or makes it. If its files cannot be read or written, the result is a CA in memory, and an error
// that says so: pods get another one when the agent restarts.
func Open(opts Options) (*Certificate, error) {
	c := &Certificate{opts: opts}
	cert, key := filepath.Join(opts.Dir, caCert), filepath.Join(opts.Dir, caKey)
	ca, own, err := certs.ReadPair(cert, key)
	if err == nil && ca != nil && ca.IsCA {
		c.ca, c.key = ca, own
		return c, nil
	}
	unreadable := isUnreadable(err)
	switch {
	case unreadable:
		err = fmt.Errorf("the CA of the API endpoint is only in memory, since its files cannot be read: %w", err)
	case err != nil || ca != nil:
		klog.ErrorS(err, "CA of the API endpoint is damaged; making another one. Pods trust it once their ca.crt is "+
			"refreshed", "file", cert)
	}
	made := c.make()
	if made != nil {
		return nil, fmt.Errorf("make the CA of the API endpoint: %w", made)
	}
	if unreadable {
		return c, err
	}
	if err := c.save(cert, key); err != nil {
		return c, fmt.Errorf("the CA of the API endpoint is only in memory, since its files cannot be written: %w", err)
	}
	klog.InfoS("CA of the API endpoint made", "file", cert)
	return c, nil
}

// isUnreadable reports whether files may be fine and could only not be read. A missing or damaged file is readable.
func isUnreadable(err error) bool {
	_, failed := errors.AsType[*os.PathError](err)
	return failed && !errors.Is(err, os.ErrNotExist)
}

func (c *Certificate) make() error {
	key, err := certs.NewKey()
	if err != nil {
		return err
	}
	serial, err := certs.NewSerial()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "edge-api-ca@" + c.opts.Node},
		NotBefore:             notBefore(),
		NotAfter:              notAfter(),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	c.key = key
	c.ca, err = x509.ParseCertificate(der)
	return err
}

// save writes the key first: a certificate without its key is of no use, and a key alone is replaced.
func (c *Certificate) save(cert, key string) error {
	text, err := certs.EncodeKeyPEM(c.key)
	if err != nil {
		return err
	}
	if err := certs.WriteFile(key, text); err != nil {
		return err
	}
	return certs.WriteFile(cert, c.CA())
}

// CA returns the CA's certificate as PEM.
func (c *Certificate) CA() []byte { return certs.EncodeCertPEM(c.ca.Raw) }

// NotAfter returns the end of the certificate that is served now.
func (c *Certificate) NotAfter() time.Time {
	cert, err := c.Get(nil)
	if err != nil {
		return time.Time{}
	}
	return cert.Leaf.NotAfter
}

// Get is tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	names, now := c.opts.Names(), c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served != nil && c.names.equal(names) && now.Before(c.served.Leaf.NotAfter.Add(-servedLeft)) {
		return c.served, nil
	}
	served, err := c.sign(names, now)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of the API endpoint: %w", err)
	}
	c.served, c.names = served, names
	return served, nil
}

func (c *Certificate) sign(names Names, now time.Time) (*tls.Certificate, error) {
	key, err := certs.NewKey()
	if err != nil {
		return nil, err
	}
	serial, err := certs.NewSerial()
	if err != nil {
		return nil, err
	}
	ips := make([]net.IP, len(names.IPs))
	for i, ip := range names.IPs {
		ips[i] = ip.AsSlice()
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "edge-api@" + c.opts.Node},
		DNSNames:     names.DNS,
		IPAddresses:  ips,
		// A clock that is set back must not make it one of the future.
		NotBefore:             notBefore(),
		NotAfter:              now.Add(servedLife),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, c.ca, key.Public(), c.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
