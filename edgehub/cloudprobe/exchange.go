package cloudprobe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/proxy"
)

// handshake is what the connection learns. It may still be dialed when the request has ended, so it has a lock.
type handshake struct {
	mu   sync.Mutex
	port Port
}

func (h *handshake) set(change func(*Port)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.port)
}

// exchange makes one request to the port and notes what comes back. It verifies nothing: there is no CA yet.
func (p *Port) exchange(ctx context.Context, choose func(*http.Request) (*url.URL, error), path string) {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	h := &handshake{port: *p}
	h.port.Through = p.Via == ""
	transport := &http.Transport{
		Proxy:                  choose,
		TLSClientConfig:        h.config(),
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHead,
		DialContext:            (&net.Dialer{Timeout: portTimeout}).DialContext,
		OnProxyConnectResponse: func(_ context.Context, via *url.URL, _ *http.Request, a *http.Response) error {
			if a.StatusCode != http.StatusOK {
				return &proxy.Refused{Proxy: via.Host, Status: a.StatusCode}
			}
			// What came before was the proxy's own TLS.
			h.set(func(p *Port) { p.Through, p.Chain, p.Version, p.Asks = true, nil, 0, false })
			return nil
		},
	}
	defer transport.CloseIdleConnections()
	status, date, body, err := get(ctx, transport, "https://"+p.Address+path)
	h.set(func(found *Port) {
		found.Status, found.Date, found.Body, found.Err = status, date, body, err
		if !found.Through && status != 0 { // by SOCKS, which does not say when it has connected
			found.Through = true
		}
		*p = *found
	})
}

// config is TLS as the agent speaks it, but for what is verified.
func (h *handshake) config() *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, // the caller judges the chain
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"http/1.1"},
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			var chain []*x509.Certificate
			for _, der := range raw {
				if cert, err := x509.ParseCertificate(der); err == nil {
					chain = append(chain, cert)
				}
			}
			h.set(func(p *Port) { p.Chain = chain })
			return nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			h.set(func(p *Port) { p.Version = s.Version })
			return nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			h.set(func(p *Port) { p.Asks = true })
			return &tls.Certificate{}, nil
		},
	}
}

// get reads at most maxCA of an answer.
func get(ctx context.Context, transport *http.Transport, address string) (int, time.Time, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, time.Time{}, nil, err
	}
	resp, err := (&http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}).Do(req)
	if err != nil {
		return 0, time.Time{}, nil, err
	}
	defer resp.Body.Close()
	date, err := http.ParseTime(strings.TrimSpace(resp.Header.Get("Date")))
	if err != nil {
		date = time.Time{}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxCA))
	return resp.StatusCode, date, body, err
}
