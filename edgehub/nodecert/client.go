package nodecert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/proxy"
)

const (
	dialTimeout    = 30 * time.Second
	requestTimeout = 30 * time.Second
	// maxAnswer and maxHead limit an answer, which may come from anyone while the cloud is unknown.
	maxAnswer = 1 << 20
	maxHead   = 64 << 10
	// maxText limits how much of an answer's text an error repeats, maxNames how many names of a certificate.
	maxText  = 500
	maxNames = 10
	// maxSkew is how far the clocks may differ: certificates start that much before they are issued.
	maxSkew = 10 * time.Minute
)

// client talks to the cloud's HTTPS endpoints (docs/wire.md, Certificates).
type client struct {
	server string // https://host:port
	proxy  func(*http.Request) (*url.URL, error)
	now    func() time.Time
}

// answer is an HTTP response, with the cloud's clock.
type answer struct {
	status int
	body   []byte
	date   time.Time // zero if the cloud sends none
}

// get makes one request on a connection of its own.
func (c *client) get(
	ctx context.Context, path string, body []byte, header http.Header, config *tls.Config,
) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	way := &way{choose: c.proxy}
	transport := &http.Transport{
		Proxy: way.proxy, TLSClientConfig: config, DisableKeepAlives: true,
		DisableCompression: true, MaxResponseHeaderBytes: maxHead,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
		OnProxyConnectResponse: func(_ context.Context, via *url.URL, _ *http.Request, a *http.Response) error {
			if a.StatusCode != http.StatusOK {
				return &proxy.Refused{Proxy: via.Host, Status: a.StatusCode}
			}
			way.through.Store(true)
			return nil
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.server, "/")+path,
		bytes.NewReader(body))
	if err != nil {
		return nil, problem(Unreachable, err, "the cloud's address %q (httpServer) is invalid: want https://HOST:PORT",
			c.server)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	hc := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, c.explain(err, way)
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		a.date = date
	}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, c.explain(err, way)
	}
	if len(a.body) > maxAnswer {
		return nil, problem(Refused, nil, "%s answers with more than %d KiB: that is not the cloud's port for "+
			"certificates (10002, unless --certport says otherwise)", c.server, maxAnswer>>10)
	}
	return a, nil
}

// way is how one request reaches the cloud.
type way struct {
	choose func(*http.Request) (*url.URL, error)
	// via is the proxy's host and port, never its password; nil without a proxy.
	via atomic.Pointer[string]
	// through: the proxy has connected to the cloud. It stays false for a SOCKS proxy, which has an error of its own.
	through, socks atomic.Bool
}

func (w *way) proxy(r *http.Request) (*url.URL, error) {
	u, err := w.choose(r)
	if u != nil {
		w.via.Store(&u.Host)
		w.socks.Store(strings.HasPrefix(u.Scheme, "socks"))
	}
	return u, err
}

// explain turns a connection error into a sentence.
func (c *client) explain(err error, w *way) error {
	via := w.via.Load()
	if via == nil {
		return c.explainCloud(err)
	}
	var op *net.OpError
	atProxy := errors.As(err, &op) && (op.Op == "proxyconnect" || strings.HasPrefix(op.Op, "socks"))
	if !w.through.Load() && (!w.socks.Load() || atProxy) {
		return c.explainProxy(err, *via)
	}
	err = c.explainCloud(err)
	var p *Problem
	if errors.As(err, &p) {
		p.Text += " (through the proxy " + *via + ")"
	}
	return err
}

// explainProxy explains why a proxy does not connect to the cloud. What does not answer is the proxy, not the cloud.
func (c *client) explainProxy(err error, via string) error {
	const remedy = "check HTTPS_PROXY, or put the cloud's host into NO_PROXY; of the service, they are in its " +
		"environment (systemctl edit edgecore)"
	var (
		dns     *net.DNSError
		refused *proxy.Refused
	)
	switch {
	case errors.As(err, &refused):
		return problem(Unreachable, err, "the proxy %s does not connect to the cloud at %s (%s): %s", refused.Proxy,
			c.server, refused.Answer(), refused.Remedy())
	case errors.As(err, &dns):
		return problem(Unreachable, err, "the proxy %s, on the way to the cloud at %s, cannot be looked up (%v): %s",
			via, c.server, dns.Err, remedy)
	case errors.Is(err, syscall.ECONNREFUSED):
		return problem(Unreachable, err, "the proxy %s, on the way to the cloud at %s, refuses connections: %s", via,
			c.server, remedy)
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return problem(Unreachable, err, "the proxy %s, on the way to the cloud at %s, does not answer in time: %s",
			via, c.server, remedy)
	case errors.Is(err, context.Canceled):
		return err
	}
	return problem(Unreachable, err, "the proxy %s does not connect to the cloud at %s (%v): %s", via, c.server,
		printable(rootOf(err).Error()), remedy)
}

// explainCloud explains why the connection to the cloud itself fails.
func (c *client) explainCloud(err error) error {
	var (
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		unknown x509.UnknownAuthorityError
		dns     *net.DNSError
		remote  *net.OpError // of a TLS alert, whose own type is not exported
	)
	now := c.now().UTC().Format(time.RFC3339)
	switch {
	case errors.As(err, &host):
		return problem(WrongHost, err, "the cloud at %s has a certificate for %s only: use one of these addresses, "+
			"or add this one to advertiseAddress or dnsNames in cloudcore's configuration and restart cloudcore",
			c.server, NamesOf(host.Certificate))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		cert := invalid.Cert
		if c.now().Before(cert.NotBefore) {
			return problem(Clock, err, "this device's clock says %s, and the cloud's certificate is valid from %s: "+
				"set "+
				"the clock (timedatectl set-ntp true, or date -s)", now, cert.NotBefore.UTC().Format(time.RFC3339))
		}
		return problem(Clock, err, "this device's clock says %s, and the cloud's certificate expired at %s: set the "+
			"clock if it is wrong; otherwise cloudcore's certificate has to be renewed", now,
			cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &unknown), errors.As(err, &invalid):
		return problem(WrongCA, err, "the server at %s is not the cloud that this device trusts: its certificate is "+
			"signed by another CA. If the address is right and the cloud was reinstalled, join again with a new "+
			"token (edgecore join)", c.server)
	case errors.As(err, &dns):
		return problem(Unreachable, err,
			"the cloud's name %s cannot be looked up: check the name, and this device's DNS (%v)", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return problem(Unreachable, err,
			"the cloud at %s refuses connections: check the address and the port, and that cloudcore runs", c.server)
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return problem(Unreachable, err, "the cloud at %s does not answer in time: check the address, this device's "+
			"network, and the firewalls between", c.server)
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, http.ErrSchemeMismatch):
		return problem(Refused, err, "the server at %s does not speak TLS: that is not the cloud's port "+
			"for certificates (10002, unless --certport says otherwise)", c.server)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return problem(Refused, err, "the cloud at %s breaks off the handshake (%v): it does not accept this device's "+
			"certificate, or that is not the cloud's port. If the port is right, join again with a new "+
			"token (edgecore join); no state is lost", c.server, remote.Err)
	}
	return problem(Unreachable, err, "the cloud at %s cannot be reached: %s", c.server, printable(rootOf(err).Error()))
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// rootOf removes what the URL's error repeats.
func rootOf(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// NamesOf lists the addresses that a certificate is for, as a text of one line.
func NamesOf(cert *x509.Certificate) string {
	var names []string
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range cert.DNSNames {
		if name != "" {
			names = append(names, printable(name))
		}
	}
	switch more := len(names) - maxNames; {
	case len(names) == 0:
		return "no address"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Printable returns the start of a text of others, of at most limit bytes, in one line without control characters.
func Printable(text string, limit int) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text[:min(len(text), limit)]))
}

func printable(text string) string { return Printable(text, maxText) }

// checkDate reports whether the two clocks differ too much for certificates to work. The cloud's date is used only for
// this message.
func (c *client) checkDate(date time.Time) error {
	now := c.now()
	if date.IsZero() || now.Sub(date).Abs() <= maxSkew {
		return nil
	}
	direction := "behind"
	if now.After(date) {
		direction = "ahead of"
	}
	return problem(Clock, nil, "this device's clock says %s, %s %s the cloud's, which says %s: set the clock of the "+
		"one that is wrong (timedatectl set-ntp true, or date -s)",
		now.UTC().Format(time.RFC3339), now.Sub(date).Abs().Round(time.Second), direction,
		date.UTC().Format(time.RFC3339))
}

// fetchCA gets the CA from an unverified server; the token says whether it is the right one.
func (c *client) fetchCA(ctx context.Context, token *certs.Token) (*x509.Certificate, time.Time, error) {
	// The hash in the token replaces a verified connection.
	a, err := c.get(ctx, "/ca.crt", nil, nil, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, time.Time{}, err
	}
	if a.status != http.StatusOK {
		return nil, a.date, c.refusal(a, "its CA")
	}
	cert, err := x509.ParseCertificate(a.body)
	if err != nil {
		return nil, a.date, problem(Refused, err, "%s does not answer with a CA certificate: that is not the cloud's "+
			"port for certificates (10002, unless --certport says otherwise)", c.server)
	}
	if !token.SignedBy(a.body) {
		return nil, a.date, problem(WrongCA, nil, "the CA of the cloud at %s does not match the token: the address "+
			"or the token belongs to another cloud, or the connection is intercepted. Get a new token (cloudcore "+
			"gettoken) from the cloud at this address; nothing was sent to it", c.server)
	}
	return cert, a.date, nil
}

// refusal returns the sentence for an answer other than 200.
func (c *client) refusal(a *answer, what string) error {
	text := printable(string(a.body[:min(len(a.body), maxText)]))
	if skew := c.checkDate(a.date); skew != nil && a.status == http.StatusUnauthorized {
		return skew
	}
	switch {
	case a.status == http.StatusUnauthorized && strings.Contains(text, "expired"):
		return problem(TokenExpired, errors.New(text), "the cloud says that the token or certificate of this device "+
			"has expired "+
			"(%s): get a new token (cloudcore gettoken --node NAME, or keadm gettoken) and run edgecore join with "+
			"it; no state is lost", text)
	case a.status == http.StatusUnauthorized && strings.Contains(text, "certificate"):
		return problem(Refused, errors.New(text), "the cloud does not accept this device's certificate (%s): get a "+
			"new token (cloudcore gettoken --node NAME, or keadm gettoken) and run edgecore join with it; no state "+
			"is lost", text)
	case a.status == http.StatusUnauthorized:
		return problem(BadToken, errors.New(text),
			"the cloud does not accept the token (%s): get a new one (cloudcore gettoken, or keadm gettoken)", text)
	case a.status == http.StatusConflict:
		return problem(NameTaken, errors.New(text), "the cloud refuses: %s", text)
	case a.status == http.StatusTooManyRequests:
		return problem(Busy, errors.New(text),
			"the cloud at %s has too many requests from this address: try again in a minute", c.server)
	case a.status >= http.StatusInternalServerError:
		return problem(Busy, errors.New(text),
			"the cloud at %s cannot give %s now (%d: %s): look at cloudcore's log, or try again", c.server, what,
			a.status, text)
	case a.status == http.StatusNotFound:
		return problem(Refused, errors.New(text), "%s does not have %s (404): that is not the cloud's port for "+
			"certificates (10002, unless --certport says otherwise)", c.server, what)
	}
	return problem(Refused, fmt.Errorf("%d", a.status), "the cloud at %s refuses %s (%d: %s)", c.server, what, a.status,
		text)
}
