package cloudprobe

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/edged/node/preflight"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/proxy"
)

const (
	// maxSkew is how far the clocks may differ; a join refuses more.
	maxSkew = 10 * time.Minute
	// maxAddresses and maxText limit what is shown of a name's addresses and of others' texts.
	maxAddresses, maxText = 10, 200

	checkName, checkProxy, checkLink, checkCerts = "name", "proxy", "port of the link", "port for certificates"
	checkTrust, checkClock                       = "certificate of the cloud", "clock"

	setClock = "Set it, or have a time server keep it: timedatectl set-ntp true, or date -s."
)

// Check judges the facts. An error means that a join fails, or that the agent cannot connect after it.
func Check(f *Facts) []preflight.Finding {
	return slices.Concat(f.name(), f.proxy(), f.ports(), f.trust(), f.clock())
}

func finding(check string, level preflight.Level, remedy, format string, args ...any) []preflight.Finding {
	return []preflight.Finding{{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Remedy: remedy}}
}

func (f *Facts) name() []preflight.Finding {
	if f.NameErr != nil {
		why := printable(f.NameErr.Error())
		var dns *net.DNSError
		if errors.As(f.NameErr, &dns) {
			why = printable(dns.Err)
			if dns.Server != "" {
				why += ", asked " + printable(dns.Server)
			}
		}
		if f.Link.Via != "" && f.Certs.Via != "" {
			return finding(checkName, preflight.OK, "", "%s is not resolved here (%s); the proxy does that", f.Host,
				why)
		}
		return finding(checkName, preflight.Error, "Check the name, and this device's network and name servers "+
			"(/etc/resolv.conf).", "%s is not resolved: %s", f.Host, why)
	}
	if len(f.Addresses) == 1 && f.Addresses[0].String() == f.Host {
		return finding(checkName, preflight.OK, "", "%s is an address, and needs no name server", f.Host)
	}
	var list []string
	for _, a := range f.Addresses[:min(len(f.Addresses), maxAddresses)] {
		list = append(list, a.Unmap().String())
	}
	return finding(checkName, preflight.OK, "", "%s is %s", f.Host, strings.Join(list, ", "))
}

// proxy says which proxy is used. What is wrong with it is found at the ports.
func (f *Facts) proxy() []preflight.Finding {
	const service = "the agent takes it from the environment of its service (systemctl edit edgecore)"
	switch link, certs := f.Link.Via, f.Certs.Via; {
	case link == "" && certs == "" && f.Proxies.HTTPS != "" && !isProxy(f.Proxies.HTTPS):
		return finding(checkProxy, preflight.Warning, "Set it to http://HOST:PORT, or unset it.",
			"none: HTTPS_PROXY is not the address of a proxy, and is ignored")
	case link == "" && certs == "" && f.Proxies.HTTPS != "":
		return finding(checkProxy, preflight.OK, "", "none: HTTPS_PROXY is set, but not used for %s: see NO_PROXY",
			f.Host)
	case link == "" && certs == "" && f.Proxies.HTTP != "":
		return finding(checkProxy, preflight.OK, "", "none: HTTP_PROXY is set, but only HTTPS_PROXY is used")
	case link == "" && certs == "":
		return finding(checkProxy, preflight.OK, "", "none: HTTPS_PROXY is not set")
	case link != certs:
		return finding(checkProxy, preflight.Warning, "Name the host without a port in NO_PROXY, or not at all.",
			"%s for the link, and %s for certificates; %s", orNone(link), orNone(certs), service)
	}
	return finding(checkProxy, preflight.OK, "", "%s, by HTTPS_PROXY of this command; %s", f.Link.Via, service)
}

func orNone(via string) string {
	if via == "" {
		return "none"
	}
	return via
}

// isProxy reports whether a value of HTTPS_PROXY is used: it is a URL, or HOST:PORT.
func isProxy(value string) bool {
	for _, text := range []string{value, "http://" + value} {
		if u, err := url.Parse(text); err == nil && u.Scheme != "" && u.Host != "" {
			return true
		}
	}
	return false
}

func (f *Facts) ports() []preflight.Finding {
	var list []preflight.Finding
	if p := &f.Link; p.Tried {
		switch {
		case len(p.Chain) == 0, !p.Asks && isTimeout(p.Err):
			list = append(list, p.fault(checkLink, "-e")...)
		case !p.Asks:
			list = append(list, finding(checkLink, preflight.Warning, "Check the port (-e); a proxy or load balancer "+
				"on the way must pass TLS on as it is.", "%s answers with %s, and does not ask for a node's "+
				"certificate, as cloudcore does", p.Address, version(p.Version))...)
		default:
			list = append(list, finding(checkLink, preflight.OK, "", "%s answers with TLS, and asks for the node's "+
				"certificate, as cloudcore does", p.Address)...)
		}
	}
	if p := &f.Certs; p.Tried {
		const remedy = "Check the port: it is 10002 unless --certport says otherwise (30002 is usual for a NodePort)."
		switch {
		case p.Asks && isAlert(p.Err):
			list = append(list, finding(checkCerts, preflight.Error, remedy, "%s takes only nodes that have a "+
				"certificate: that is the port of a link", p.Address)...)
		case len(p.Chain) == 0 || p.Err != nil:
			list = append(list, p.fault(checkCerts, "--certport")...)
		case p.Status == http.StatusTooManyRequests:
			list = append(list, finding(checkCerts, preflight.Warning, "Try again in a minute.",
				"%s has too many requests from this address", p.Address)...)
		case p.Status != http.StatusOK:
			list = append(list, finding(checkCerts, preflight.Error, remedy, "%s does not give out a CA (HTTP %d %s): "+
				"that is not cloudcore's port for certificates", p.Address, p.Status, http.StatusText(p.Status))...)
		case f.CA == nil:
			list = append(list, finding(checkCerts, preflight.Error, remedy, "what %s gives out is not the "+
				"certificate of a CA: that is not cloudcore's port for certificates", p.Address)...)
		default:
			list = append(list, finding(checkCerts, preflight.OK, "",
				"%s answers with %s, and gives out the cloud's CA", p.Address, version(p.Version))...)
		}
	}
	return list
}

func version(v uint16) string {
	if v == 0 {
		return "TLS"
	}
	return tls.VersionName(v)
}

// fault says why a port has no answer; flag is the one that names the port.
func (p *Port) fault(check, flag string) []preflight.Finding {
	const (
		fromProxy = "Correct HTTPS_PROXY, or put the cloud's host into NO_PROXY."
		network   = "See the device's network and routes, and firewalls on the way."
	)
	port := "Check the port (" + flag + ")"
	bad := func(remedy, format string, args ...any) []preflight.Finding {
		return finding(check, preflight.Error, remedy, format, args...)
	}
	var (
		refused *proxy.Refused
		dns     *net.DNSError
		op      *net.OpError
		record  tls.RecordHeaderError
	)
	atProxy := !p.Through && errors.As(p.Err, &op) && (op.Op == "proxyconnect" || strings.HasPrefix(op.Op, "socks"))
	where := p.Address
	if p.Via != "" && p.Through {
		where += " (through the proxy " + p.Via + ")"
	}
	switch {
	case errors.As(p.Err, &refused):
		return bad(sentence(refused.Remedy()), "the proxy %s does not connect to %s: %s", refused.Proxy, p.Address,
			refused.Answer())
	case !p.Through && errors.As(p.Err, &dns):
		return bad(fromProxy, "the proxy %s is not resolved: %s", p.Via, printable(dns.Err))
	case atProxy && errors.Is(p.Err, syscall.ECONNREFUSED):
		return bad(fromProxy, "the proxy %s refuses connections", p.Via)
	case !p.Through && isTimeout(p.Err):
		return bad(fromProxy, "the proxy %s does not answer within %v", p.Via, portTimeout)
	case !p.Through:
		return bad(fromProxy, "the proxy %s does not connect to %s: %s", p.Via, p.Address, reason(p.Err))
	case errors.Is(p.Err, syscall.ECONNREFUSED):
		return bad(port+", and that cloudcore runs there.", "%s refuses connections", where)
	case isTimeout(p.Err):
		return bad(network+" "+port+".", "%s does not answer within %v", where, portTimeout)
	case errors.Is(p.Err, syscall.ENETUNREACH), errors.Is(p.Err, syscall.EHOSTUNREACH):
		return bad(network, "there is no way to %s: %s", where, reason(p.Err))
	case errors.Is(p.Err, http.ErrSchemeMismatch), errors.As(p.Err, &record):
		return bad(port+": cloudcore speaks TLS there.", "what listens at %s does not speak TLS", where)
	case errors.Is(p.Err, io.EOF), errors.Is(p.Err, io.ErrUnexpectedEOF), errors.Is(p.Err, syscall.ECONNRESET),
		isAlert(p.Err):
		return bad("See that cloudcore runs behind that address, and whether a firewall on the way inspects TLS. "+port+
			".", "%s breaks off the connection: %s", where, reason(p.Err))
	}
	return bad(port+", and firewalls on the way.", "%s does not answer as cloudcore does: %s", where, reason(p.Err))
}

// sentence makes a sentence of a remedy.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

// reason is the innermost error, in one line.
func reason(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	if err == nil {
		return "it shows no certificate"
	}
	return printable(err.Error())
}

// isAlert reports whether the server broke off TLS with a reason.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// trust judges the certificates, as far as that is possible without the device's own CA.
func (f *Facts) trust() []preflight.Finding {
	const (
		names = "Use one of these addresses, or add this one to advertiseAddress or dnsNames in cloudcore's " +
			"configuration and restart cloudcore."
		inspected = "Have proxies, firewalls and load balancers on the way pass TLS on as it is, and check the ports."
	)
	if f.CA == nil || len(f.Certs.Chain) == 0 {
		return nil
	}
	if f.Token != nil && !f.Token.SignedBy(f.CA.Raw) {
		return finding(checkTrust, preflight.Error, "Get a token (cloudcore gettoken) from the cloud at this address.",
			"the CA of %s is not the one of the token: the address or the token belongs to another cloud, or the "+
				"connection is intercepted", f.Certs.Address)
	}
	for _, p := range []*Port{&f.Certs, &f.Link} {
		if len(p.Chain) == 0 {
			continue
		}
		var host x509.HostnameError
		err := f.verify(p.Chain)
		switch {
		case errors.As(err, &host):
			return finding(checkTrust, preflight.Error, names, "the certificate at %s is for %s only", p.Address,
				nodecert.NamesOf(p.Chain[0]))
		case err != nil:
			return finding(checkTrust, preflight.Error, inspected, "the certificate at %s is not signed by the CA "+
				"that %s gives out: that is another server, or something on the way replaces it (%s)", p.Address,
				f.Certs.Address, printable(err.Error()))
		}
	}
	if f.Token != nil {
		if e := f.Token.Claims.Expires; !e.IsZero() && !f.Certs.Date.IsZero() && f.Certs.Date.After(e) {
			return finding(checkTrust, preflight.Error, "Get a new one: cloudcore gettoken, or keadm gettoken.",
				"the token expired at %s", e.UTC().Format(time.RFC3339))
		}
		return finding(checkTrust, preflight.OK, "", "signed by the CA of the token, and for %s", f.Host)
	}
	return finding(checkTrust, preflight.OK, "", "signed by the CA that the cloud gives out, and for %s. Whether that "+
		"is your cloud's CA is known only with a token (--token-file): its SHA-256 is %x", f.Host,
		sha256.Sum256(f.CA.Raw))
}

// verify checks a chain as a join does, but for the time, which is the clock's finding.
func (f *Facts) verify(chain []*x509.Certificate) error {
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: certs.Pool(f.CA), Intermediates: certs.Pool(chain[1:]...), DNSName: f.Host,
		CurrentTime: later(chain[0].NotBefore, f.CA.NotBefore),
	})
	return err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// clock compares the device's clock with the cloud's, and with the time of its certificate.
func (f *Facts) clock() []preflight.Finding {
	chain := f.Certs.Chain
	if len(chain) == 0 {
		chain = f.Link.Chain
	}
	now := f.Now.UTC().Format(time.RFC3339)
	if len(chain) == 0 {
		return finding(checkClock, preflight.Warning, "Compare it with a clock that is right.",
			"%s; there is no answer of the cloud to compare it with", now)
	}
	cert, date := chain[0], f.Certs.Date
	from, until := cert.NotBefore.UTC().Format(time.RFC3339), cert.NotAfter.UTC().Format(time.RFC3339)
	outside := f.Now.Before(cert.NotBefore) || f.Now.After(cert.NotAfter)
	skew := f.Now.Sub(date).Abs().Round(time.Second)
	switch {
	case !date.IsZero() && skew > maxSkew:
		direction := "behind"
		if f.Now.After(date) {
			direction = "ahead of"
		}
		return finding(checkClock, preflight.Error, "Set the one that is wrong: timedatectl set-ntp true, or date -s.",
			"%s, %v %s the cloud's, which says %s: certificates are refused", now, skew, direction,
			date.UTC().Format(time.RFC3339))
	case outside && !date.IsZero():
		return finding(checkClock, preflight.Error, "Renew cloudcore's certificate: it does so itself, unless "+
			"tlsCertFile names a file.", "%s, as the cloud's, whose certificate is valid from %s to %s", now, from,
			until)
	case outside:
		return finding(checkClock, preflight.Error, setClock+" If it is right, renew cloudcore's certificate.",
			"%s, and the cloud's certificate is valid from %s to %s", now, from, until)
	case date.IsZero():
		return finding(checkClock, preflight.OK, "", "%s; the cloud sends no time, and its certificate is valid from "+
			"%s to %s", now, from, until)
	}
	return finding(checkClock, preflight.OK, "", "%s, %v from the cloud's; its certificate is valid until %s", now,
		skew, until)
}

// printable returns the start of a text of others, for a line.
func printable(text string) string { return nodecert.Printable(text, maxText) }
