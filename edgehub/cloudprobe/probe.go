// Package cloudprobe checks the way to a cloud before a device joins it: name, proxy, ports, TLS and clock. It needs no
// certificate and no CA, writes nothing, and sends nothing secret. Probe collects Facts, and Check finds the problems
// in them.
//
// It promises that no server or proxy, whatever it sends, makes it take more than half a minute or hold more than some
// 100 KiB, and that texts of others are shown as one line.
package cloudprobe

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

const (
	// nameTimeout bounds looking up the name, and portTimeout the exchange with one port.
	nameTimeout = 10 * time.Second
	portTimeout = 15 * time.Second
	// maxHead limits the head of an answer, and maxCA a CA's certificate, which has 1 or 2 KiB. A key much longer than
	// usual would take seconds to verify.
	maxHead, maxCA = 64 << 10, 16 << 10
)

// Options say which cloud, and how it is reached.
type Options struct {
	// Host is the cloud's name or address; Port is the link's, CertPort that for certificates.
	Host, Port, CertPort string
	// Token is the one to join with; nil if there is none yet.
	Token *certs.Token
	// Proxy chooses the proxy, and Getenv reads the environment; nil are those of this process.
	Proxy  func(*http.Request) (*url.URL, error)
	Getenv func(string) string
	// Now is the clock; nil is the real one.
	Now func() time.Time
}

// Facts are what was found.
type Facts struct {
	Host  string
	Token *certs.Token
	// Now is the device's clock when the port for certificates answered.
	Now time.Time
	// Addresses are the cloud's; NameErr says why there are none.
	Addresses []netip.Addr
	NameErr   error
	Proxies   Proxies
	// Link and Certs are the two ports. They are not tried if the name is needed, and not resolved.
	Link, Certs Port
	// CA is what the port for certificates gave out; nil if that is no certificate of a CA.
	CA *x509.Certificate
}

// Proxies is what the environment says of proxies.
type Proxies struct {
	// HTTPS and HTTP have the value of HTTPS_PROXY and HTTP_PROXY, in capitals or not; "" if they are not set. They may
	// have a password.
	HTTPS, HTTP string
}

// Port is what an exchange with one port of the cloud found.
type Port struct {
	// Address is HOST:PORT. Tried: it was dialed.
	Address string
	Tried   bool
	// Via is the proxy's host and port; "" without one. Through: it has connected, or there is none.
	Via     string
	Through bool
	// Chain is the server's, the first one its own; nil without TLS. Version is that of TLS.
	Chain   []*x509.Certificate
	Version uint16
	// Asks: the server asked for a certificate of the client.
	Asks bool
	// Err says why there is no answer of HTTP; Status, Date and Body are of the answer.
	Err    error
	Status int
	Date   time.Time
	Body   []byte
}

// Probe finds out how the way to the cloud is.
func Probe(ctx context.Context, o Options) *Facts {
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	f := &Facts{Host: o.Host, Token: o.Token, Now: o.Now()}
	f.Link.Address, f.Certs.Address = net.JoinHostPort(o.Host, o.Port), net.JoinHostPort(o.Host, o.CertPort)
	for _, name := range []string{"https_proxy", "HTTPS_PROXY"} {
		if value := o.Getenv(name); value != "" {
			f.Proxies.HTTPS = value
		}
	}
	for _, name := range []string{"http_proxy", "HTTP_PROXY"} {
		if value := o.Getenv(name); value != "" {
			f.Proxies.HTTP = value
		}
	}
	f.resolve(ctx)
	var wg sync.WaitGroup
	for _, p := range []*Port{&f.Link, &f.Certs} {
		via := viaOf(o.Proxy, p.Address)
		if f.NameErr != nil && via == "" {
			continue
		}
		p.Tried, p.Via = true, via
		wg.Go(func() {
			path := "/"
			if p == &f.Certs {
				path = "/ca.crt"
			}
			p.exchange(ctx, o.Proxy, path)
		})
	}
	wg.Wait()
	if f.Certs.Tried {
		f.Now = o.Now()
	}
	if ca, err := x509.ParseCertificate(f.Certs.Body); err == nil && ca.IsCA && f.Certs.Status == http.StatusOK {
		f.CA = ca
	}
	return f
}

func (f *Facts) resolve(ctx context.Context) {
	if addr, err := netip.ParseAddr(f.Host); err == nil {
		f.Addresses = []netip.Addr{addr}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	f.Addresses, f.NameErr = net.DefaultResolver.LookupNetIP(ctx, "ip", f.Host)
}

// viaOf returns the proxy for an address, as HOST:PORT.
func viaOf(choose func(*http.Request) (*url.URL, error), address string) string {
	u, err := choose(&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: address, Path: "/"}})
	if err != nil || u == nil {
		return ""
	}
	return u.Host
}
