// Package nodecert requests this device's certificate for the link, and renews it.
//
// It promises: the token alone decides whom the device trusts, and nothing is sent to anyone else; files change only
// when the whole set is complete; pods do not depend on any of this; and every failure is a Problem, whose sentence
// says what to do.
//
// It speaks KubeEdge's protocol (docs/wire.md, Certificates), so the cloud may be KubeEdge's.
package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Options are the configuration's settings (modules.edgeHub).
type Options struct {
	// Server is the cloud's endpoint for certificates: https://HOST:10002.
	Server string
	// Node is this device's name.
	Node  string
	Files certs.Files
	// Token returns the token to join with; empty if there is none. It is called when one is needed.
	Token func() (string, error)
	// Proxy chooses a proxy; nil uses the environment's (HTTPS_PROXY).
	Proxy func(*http.Request) (*url.URL, error)
	// Now is the clock; nil is the real one. The package never trusts a time before the certificates' NotBefore.
	Now func() time.Time
	// Sleep waits, or returns the context's error; nil is the real one.
	Sleep func(context.Context, time.Duration) error
	// Report is called with each problem while the certificate is renewed, and with nil when it is resolved. It may be
	// nil.
	Report func(error)
}

// Keeper keeps one device's certificate. Its methods may be called from any goroutine, but Ensure, Join and Rotate not
// concurrently.
type Keeper struct {
	opts Options
	client
	// renewal: the certificate is renewed early.
	renewal atomic.Int32
}

// New makes a Keeper. It reads and writes no files.
func New(opts Options) *Keeper {
	if opts.Proxy == nil {
		opts.Proxy = http.ProxyFromEnvironment
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Sleep == nil {
		opts.Sleep = sleep
	}
	if opts.Report == nil {
		opts.Report = func(error) {}
	}
	k := &Keeper{opts: opts}
	k.client = client{server: opts.Server, proxy: opts.Proxy, now: k.boundedNow}
	return k
}

// boundedNow returns the clock, but no time before the newest NotBefore that the device knows.
func (k *Keeper) boundedNow() time.Time {
	return certs.AtLeast(k.opts.Now, k.opts.Files.ClockBound())()
}

// States of RenewSoon.
const (
	renewOnSchedule = iota
	renewRequested
	renewFutile // it brought no other CA
)

// RenewSoon makes Rotate renew the certificate within the hour, because the cloud seems to have a CA that the device
// does not know. If the renewal brings no new CA, later calls do nothing. It does not block.
func (k *Keeper) RenewSoon() { k.renewal.CompareAndSwap(renewOnSchedule, renewRequested) }

// Ensure makes sure that there is a certificate for this node, and gets one with the token if there is none. It uses a
// valid one without asking the cloud.
func (k *Keeper) Ensure(ctx context.Context) error {
	bad := k.Check()
	if bad == nil {
		return nil
	}
	text := ""
	if k.opts.Token != nil {
		var err error
		if text, err = k.opts.Token(); err != nil {
			return problem(BadToken, err, "the token cannot be read: %v", err)
		}
	}
	if text == "" {
		return bad
	}
	klog.V(1).InfoS("Getting a certificate with the token", "node", k.opts.Node, "server", k.opts.Server,
		"because", bad.Error())
	return k.Join(ctx, text)
}

// Check reads only the files: nil if they hold a certificate of this node that is valid now. The error says how a token
// helps.
func (k *Keeper) Check() error {
	renew := "get a token in the cloud (cloudcore gettoken --node " + k.opts.Node +
		", or keadm gettoken) and run edgecore join with it"
	id, err := k.opts.Files.Load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return problem(NoToken, err,
			"this device has no certificate for the cloud yet: %s. Pods of the manifests folder run without", renew)
	case errors.Is(err, fs.ErrPermission):
		return problem(BadFiles, err, "the device's certificate cannot be read (%v): run as root", err)
	case err != nil:
		return problem(BadFiles, err, "the device's certificate is invalid (%v): %s; no state is lost", err, renew)
	}
	cert := id.Cert()
	if err := certs.CheckNode(cert, k.opts.Node, false); err != nil && !certs.IsLegacy(cert.Subject) {
		return problem(WrongNode, err, "%v: set hostnameOverride back, or %s", err, renew)
	}
	if now := k.boundedNow(); now.After(cert.NotAfter) {
		return problem(Expired, nil,
			"the device's certificate expired at %s (the clock says %s): %s; no state is lost, and the pods keep "+
				"running",
			cert.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), renew)
	}
	return nil
}

// OfAnother reads only the files and the token. It returns an error if the certificate is another node's and no token
// gets one of this node: it is missing, has expired, or is another node's, too. Only another name of the node helps
// then.
func (k *Keeper) OfAnother() error {
	err := k.Check()
	if ReasonOf(err) != WrongNode || k.opts.Token == nil {
		return nil
	}
	text, readErr := k.opts.Token()
	if readErr != nil {
		return nil // it may be readable later
	}
	token, parseErr := certs.ParseToken(text)
	if parseErr != nil {
		return err
	}
	c := token.Claims
	if c.Node != "" && c.Node != k.opts.Node || !c.Expires.IsZero() && k.boundedNow().After(c.Expires) {
		return err
	}
	return nil
}

// Join gets a certificate with a token, regardless of existing files, and writes the files.
func (k *Keeper) Join(ctx context.Context, text string) error {
	token, err := certs.ParseToken(text)
	if err != nil {
		return problem(BadToken, err, "%v", err)
	}
	if n := token.Claims.Node; n != "" && n != k.opts.Node {
		return problem(WrongNode, nil, "the token is for node %q, and this device is %q: join with --edgenode-name "+
			"%s, or get a token for this one (cloudcore gettoken --node %s)", n, k.opts.Node, n, k.opts.Node)
	}
	ca, date, err := k.trust(ctx, token)
	if err != nil {
		return err
	}
	if e := token.Claims.Expires; !e.IsZero() && !date.IsZero() && date.After(e) {
		return problem(TokenExpired, nil,
			"the token expired at %s, %s ago: get a new one (cloudcore gettoken, or keadm gettoken)",
			e.UTC().Format(time.RFC3339), date.Sub(e).Round(time.Second))
	}
	header := http.Header{"Authorization": {"Bearer " + token.Bearer}}
	return k.apply(ctx, ca, header, nil)
}

// trust fetches the CA and checks it, and that the clocks agree.
func (k *Keeper) trust(ctx context.Context, token *certs.Token) (*x509.Certificate, time.Time, error) {
	ca, date, err := k.fetchCA(ctx, token)
	if err != nil {
		return nil, date, err
	}
	return ca, date, k.checkDate(date)
}

// NameTaken asks the cloud whether it has a node of this name. Clouds before KubeEdge 1.20 cannot tell, and answer no.
func (k *Keeper) NameTaken(ctx context.Context, text string) (bool, error) {
	token, err := certs.ParseToken(text)
	if err != nil {
		return false, problem(BadToken, err, "%v", err)
	}
	ca, _, err := k.trust(ctx, token)
	if err != nil {
		return false, err
	}
	header := http.Header{"Authorization": {"Bearer " + token.Bearer}} // without it, ours says that every name is free
	a, err := k.get(ctx, "/node/"+url.PathEscape(k.opts.Node), nil, header, k.tlsTo(certs.Pool(ca)))
	switch {
	case err != nil:
		return false, err
	case a.status == http.StatusOK:
		return true, nil
	case a.status == http.StatusNotFound:
		return false, nil
	}
	return false, k.refusal(a, "an answer on whether the name is taken")
}

// tlsTo returns the configuration of a verified connection to the cloud.
func (k *Keeper) tlsTo(cas *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cas, Time: k.boundedNow}
}

// apply asks for a certificate for a new key, checks it, and writes the files. Either ca is whom to trust
// from now on, or the identity speaks for the device and stays with its CA, unless the cloud has another one now.
func (k *Keeper) apply(ctx context.Context, ca *x509.Certificate, header http.Header, with *certs.Identity) error {
	key, err := certs.NewKey()
	if err != nil {
		return err
	}
	csr, err := certs.NewRequest(k.opts.Node, key)
	if err != nil {
		return err
	}
	var config *tls.Config
	var caDER []byte
	if with != nil {
		config = with.ClientTLS(k.boundedNow)
	} else {
		config, caDER = k.tlsTo(certs.Pool(ca)), ca.Raw
	}
	if header == nil {
		header = http.Header{}
	}
	header.Set("NodeName", k.opts.Node)
	a, err := k.get(ctx, "/edge.crt", csr, header, config)
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return k.refusal(a, "a certificate for this device")
	}
	err = k.checkIssued(a.body, key, config.RootCAs)
	if with != nil && errors.As(err, new(x509.UnknownAuthorityError)) {
		// The cloud has another CA since. This connection is to the cloud all the same: it showed a certificate that
		// the previous CA signed.
		if ca, err = k.nextCA(ctx, config); err != nil {
			return err
		}
		caDER = ca.Raw
		err = k.checkIssued(a.body, key, certs.Pool(ca))
	}
	if err != nil {
		return err
	}
	if err := k.opts.Files.Save(caDER, a.body, key); err != nil {
		return problem(BadFiles, err,
			"the new certificate cannot be written (%v): run as root, and make room on the disk", err)
	}
	return nil
}

// nextCA asks a trusted cloud for its current CA.
func (k *Keeper) nextCA(ctx context.Context, config *tls.Config) (*x509.Certificate, error) {
	a, err := k.get(ctx, "/ca.crt", nil, nil, config)
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, k.refusal(a, "its CA")
	}
	ca, err := x509.ParseCertificate(a.body)
	if err != nil || !ca.IsCA {
		return nil, problem(Refused, err, "%s does not answer with a CA certificate: that is not the cloud's port "+
			"for certificates (10002, unless --certport says otherwise)", k.opts.Server)
	}
	klog.InfoS("The cloud has another CA; storing it with the new certificate", "node", k.opts.Node,
		"server", k.opts.Server)
	return ca, nil
}

// checkIssued makes sure that the cloud issued what was requested: it will replace a working certificate.
func (k *Keeper) checkIssued(der []byte, key *ecdsa.PrivateKey, cas *x509.CertPool) error {
	cert, err := x509.ParseCertificate(der)
	if err == nil && !certs.Fits(cert, key) {
		err = errors.New("it is for another key")
	}
	if err == nil {
		err = certs.CheckNode(cert, k.opts.Node, false)
	}
	if err == nil {
		// It may have begun a moment after this device's clock.
		err = certs.VerifyClient(cert, cas, certs.AtLeast(k.boundedNow, cert.NotBefore)())
	}
	if err != nil {
		return problem(Refused, err, "the certificate that the cloud at %s gave is not what was asked for (%v); the "+
			"files are as they were. Look at cloudcore's log", k.opts.Server, err)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if !retry.Sleep(ctx, d) {
		return ctx.Err()
	}
	return nil
}
