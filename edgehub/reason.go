package edgehub

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/pkg/proxy"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// failure is a user-readable reason for having no link.
type failure struct {
	// kind is short, for metrics.
	kind string
	// text is a sentence that names the cause and the remedy. The same cause gives the same text.
	text string
	// expired: the node's own certificate has expired.
	expired bool
	err     error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.err }

// dialFailure converts a dial error to a failure.
func (m *Module) dialFailure(ctx context.Context, t target, own *x509.Certificate, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return explain(t, own, m.set.files, time.Now(), err)
}

const join = `run "edgecore join" with a fresh token (cloudcore gettoken)`

// proxySettings is what to look at where a proxy does not answer.
const proxySettings = "see HTTPS_PROXY and NO_PROXY of the service (systemctl edit edgecore)"

// explain explains why a dial failed. own, the node's certificate, may be nil.
func explain(t target, own *x509.Certificate, f files, now time.Time, err error) *failure {
	for _, look := range []func(target, files, time.Time, error) (kind, text string){
		explainFiles, explainCloudCertificate, explainAlert, explainRefusal, explainNetwork,
	} {
		kind, text := look(t, f, now, err)
		if kind == "" {
			continue
		}
		x := &failure{kind: kind, text: text, err: err}
		if kind == "rejected" || kind == "refused" || kind == "reset" { // a reset may hide TLS's alert
			explainOwn(x, own, now)
		}
		var via *wire.ProxyError
		if errors.As(err, &via) && kind != "proxy" {
			x.text += " (through the proxy " + via.Proxy + ")"
		}
		return x
	}
	return &failure{kind: "other", text: fmt.Sprintf("%s at %s: %v", t.protocol, t.server, root(err)), err: err}
}

// explainOwn adds problems of the node's own certificate that make a cloud refuse the node.
func explainOwn(x *failure, own *x509.Certificate, now time.Time) {
	switch {
	case own == nil:
	case now.After(own.NotAfter):
		x.kind, x.expired = "certificate_expired", true
		x.text = fmt.Sprintf("the node's certificate expired at %s; %s", stamp(own.NotAfter), join)
	case now.Before(own.NotBefore):
		x.kind = "clock"
		x.text = fmt.Sprintf("the device's clock is not set: the node's certificate is valid from %s; set the "+
			"clock (NTP)", stamp(own.NotBefore))
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// explainFiles explains missing or broken certificate files.
func explainFiles(_ target, _ files, _ time.Time, err error) (kind, text string) {
	var file *fileError
	switch {
	case !errors.As(err, &file):
		return "", ""
	case errors.Is(err, os.ErrNotExist):
		return "no_certificate", fmt.Sprintf("there is no file %s: this node has not joined a cloud; %s", file.path,
			join)
	}
	return "no_certificate", fmt.Sprintf("the node's certificate files are invalid: %v; %s", file, join)
}

// explainCloudCertificate explains why this end rejects the cloud's certificate.
func explainCloudCertificate(t target, f files, now time.Time, err error) (kind, text string) {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		return "wrong_name", fmt.Sprintf("the cloud's certificate is not for %s (%s); add it to "+
			"modules.cloudHub.advertiseAddress or dnsNames of cloudcore, or use a name that is in it", host(t.server),
			names(name.Certificate))
	case errors.As(err, &authority):
		return "untrusted",
			fmt.Sprintf("the cloud at %s has no certificate of the CA in %s: it is another cloud, or one with a new "+
				"CA; %s", t.server, f.ca, join)
	case !errors.As(err, &invalid):
		return "", ""
	case invalid.Reason != x509.Expired || invalid.Cert == nil:
		return "untrusted", fmt.Sprintf("the certificate of the cloud at %s is not valid: %v", t.server, invalid)
	case now.Before(invalid.Cert.NotBefore):
		return "clock",
			fmt.Sprintf("the device's clock is not set: the cloud's certificate is valid from %s; set the clock (NTP)",
				stamp(invalid.Cert.NotBefore))
	}
	return "untrusted",
		fmt.Sprintf("the cloud's certificate expired at %s; renew it in the cloud, or set the device's clock if it "+
			"is wrong", stamp(invalid.Cert.NotAfter))
}

func names(c *x509.Certificate) string {
	if c == nil {
		return "its names are not known"
	}
	list := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		list = append(list, ip.String())
	}
	if len(list) == 0 {
		return "it has no names"
	}
	return "it is for " + strings.Join(list, ", ")
}

// explainAlert explains why the cloud rejects this end's certificate, from the TLS alert.
func explainAlert(t target, _ files, _ time.Time, err error) (kind, text string) {
	s := err.Error()
	if !strings.Contains(s, "remote error: tls") && !strings.Contains(s, "CRYPTO_ERROR") {
		return "", ""
	}
	for _, what := range []string{
		"certificate required", "bad certificate", "unknown certificate authority", "expired certificate",
		"unknown certificate", "revoked certificate", "access denied",
	} {
		if strings.Contains(s, what) {
			return "rejected", fmt.Sprintf("the cloud at %s rejects the node's certificate (%s); %s", t.server, what,
				join)
		}
	}
	return "tls", fmt.Sprintf("the cloud at %s does not agree on TLS: %v", t.server, root(err))
}

// explainRefusal explains answers of HTTP servers, or of the cloud over QUIC.
func explainRefusal(t target, _ files, _ time.Time, err error) (kind, text string) {
	var refused *wire.Refused
	if !errors.As(err, &refused) {
		return "", ""
	}
	said := ""
	if refused.Text != "" {
		said = ": " + refused.Text
	}
	switch refused.Status {
	case 0:
		return "refused", fmt.Sprintf("the cloud at %s refuses the node%s", t.server, said)
	case http.StatusUnauthorized, http.StatusForbidden:
		return "refused", fmt.Sprintf("the cloud at %s refuses the node (HTTP %d%s); see that the node's name is the "+
			"one in its certificate, or %s", t.server, refused.Status, said, join)
	case http.StatusConflict:
		return "duplicate", fmt.Sprintf("the cloud at %s refuses the node (HTTP %d%s)", t.server, refused.Status, said)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return "busy",
			fmt.Sprintf("the cloud at %s cannot take the node now (HTTP %d%s), and is tried again; if that lasts, see "+
				"cloudcore's log and its modules.cloudHub.nodeLimit", t.server, refused.Status, said)
	}
	return "no_websocket",
		fmt.Sprintf("what listens at %s is not cloudcore (HTTP %d%s); see modules.edgeHub.websocket.server", t.server,
			refused.Status, said)
}

// explainNetwork explains errors of networks and proxies.
func explainNetwork(t target, _ files, _ time.Time, err error) (kind, text string) {
	where := t.server
	var via *wire.ProxyError
	if errors.As(err, &via) {
		where = "the proxy " + via.Proxy
	}
	var refused *proxy.Refused
	var dns *net.DNSError
	timeout := net.Error(nil)
	switch {
	case errors.As(err, &refused):
		return "proxy", fmt.Sprintf("the proxy %s does not connect to %s (%s): %s", refused.Proxy, t.server,
			refused.Answer(), refused.Remedy())
	case via != nil && errors.As(err, &dns):
		return "dns", fmt.Sprintf("the name of %s is not resolved; %s, and that the device has a name server "+
			"(/etc/resolv.conf)", where, proxySettings)
	case errors.As(err, &dns):
		return "dns", fmt.Sprintf("the name %s is not resolved; see that the device has a network and a name server "+
			"(/etc/resolv.conf), and that the name is right", dns.Name)
	case via != nil && errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused", fmt.Sprintf("nothing listens at %s; %s", where, proxySettings)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused",
			fmt.Sprintf("nothing listens at %s; see that cloudcore runs there, and that modules.edgeHub.%s.server "+
				"is right", where, t.protocol)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETDOWN):
		return "unreachable", fmt.Sprintf("the device has no route to %s (%v); check its network and routes", where,
			root(err))
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout", fmt.Sprintf("%s does not answer within %v; see its address, and firewalls on the way", where,
			t.handshake)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.EPIPE):
		return "reset", fmt.Sprintf("%s closes the connection during the handshake; check that it is cloudcore's %s "+
			"port, and check firewalls on the way", where, t.protocol)
	case via != nil:
		return "proxy",
			fmt.Sprintf("the proxy %s does not connect to %s (%v); %s", via.Proxy, t.server, root(via.Err),
				proxySettings)
	}
	return "", ""
}

func host(server string) string {
	if h, _, err := net.SplitHostPort(server); err == nil {
		return h
	}
	return server
}

// root returns the innermost error: it names no ports, which differ with each dial.
func root(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
