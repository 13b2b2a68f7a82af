// Package certificates is the cloud's certificate authority of the link: its CA, its servers' certificate, the tokens
// that devices join with, and the HTTPS endpoints (10002) that issue certificates.
//
// It promises: all replicas share one CA, one server certificate and one token key, whichever starts first, since each
// is kept in a Secret and the second writer takes what the first wrote; an unreadable CA is never replaced; and a
// node's certificate names that node, whatever the request said.
//
// The Secrets and the endpoints are KubeEdge's (docs/wire.md, Certificates), so that KubeEdge's edges can join.
package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// Options are the configuration's settings for certificates (modules.cloudHub).
type Options struct {
	// CAFile, CAKeyFile, CertFile and KeyFile are the administrator's own; they are used if they exist, and never
	// written.
	CAFile, CAKeyFile, CertFile, KeyFile string
	// Addresses are the IP addresses and DNS names at which edges reach this cloud.
	Addresses []string
	// NodeLifetime is the validity of a node's certificate.
	NodeLifetime time.Duration
	// TokenRefresh is how often the general token is replaced; it is valid for twice as long.
	TokenRefresh time.Duration
	// AllowLegacy lets certificates that KubeEdge before 1.16 gave to all nodes speak for any node.
	AllowLegacy bool
	// ProtectTaken refuses a taken name to anyone with only a general token: it takes a token for that node, or its
	// certificate.
	ProtectTaken bool
	// RequestsPerSecond and Burst limit the requests of one address; 0 is the default, negative is no limit.
	RequestsPerSecond float64
	Burst             int
	// Now is the clock; nil is the real one.
	Now func() time.Time
}

// The defaults of KubeEdge.
const (
	DefaultNodeLifetime = 365 * 24 * time.Hour
	DefaultTokenRefresh = 12 * time.Hour
)

// Authority issues certificates and tokens. Its methods may be called from any goroutine.
type Authority struct {
	opts     Options
	secrets  Secrets
	fromFile bool        // the CA is from the administrator's files
	ownFile  atomic.Bool // so is the server's certificate
	ca       atomic.Pointer[authorities]
	tokenKey atomic.Pointer[[]byte]
	server   atomic.Pointer[pair]
	revoked  atomic.Pointer[revocations]
	changed  listener
	due      notify.Signal // signals that Refresh has work
}

// pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (p pair) tls(chain ...*x509.Certificate) tls.Certificate {
	c := tls.Certificate{Certificate: [][]byte{p.cert.Raw}, PrivateKey: p.key, Leaf: p.cert}
	for _, cert := range chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

// New loads the CA, keys and tokens, and creates those that are missing.
func New(ctx context.Context, secrets Secrets, opts Options) (*Authority, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.NodeLifetime <= 0 {
		opts.NodeLifetime = DefaultNodeLifetime
	}
	if opts.TokenRefresh <= 0 {
		opts.TokenRefresh = DefaultTokenRefresh
	}
	a := &Authority{opts: opts, secrets: secrets, due: notify.NewSignal()}
	ca, err := a.loadCA(ctx)
	if err != nil {
		return nil, err
	}
	a.ca.Store(ca)
	if err := a.refreshTokenKey(ctx); err != nil {
		return nil, err
	}
	if err := a.loadRevocations(ctx); err != nil {
		return nil, err
	}
	if err := a.refreshServer(ctx); err != nil {
		return nil, err
	}
	return a, a.refreshToken(ctx)
}

// loadCA loads the CA from the files, else from the Secret, else creates one.
func (a *Authority) loadCA(ctx context.Context) (*authorities, error) {
	cert, key, err := certs.ReadPair(a.opts.CAFile, a.opts.CAKeyFile)
	if err != nil {
		return nil, fmt.Errorf("CA from files: %w; keep both files or neither", err)
	}
	if cert != nil {
		p := pair{cert, key}
		if err := p.checkCA(a.opts.Now()); err != nil {
			return nil, fmt.Errorf("CA from file %s: %w", a.opts.CAFile, err)
		}
		a.fromFile = true
		return newAuthorities(p, nil, nil), a.keepFiles(ctx, caSecret, p)
	}
	data, wrote, err := update(ctx, a.secrets, caSecret.name, func(old map[string][]byte) (map[string][]byte, error) {
		if old != nil {
			return nil, nil
		}
		p, err := newCA(a.opts.Now())
		if err != nil {
			return nil, err
		}
		return caSecret.encode(p)
	})
	if err != nil {
		return nil, err
	}
	if wrote {
		klog.InfoS("Made a CA for the link", "secret", caSecret.name)
	}
	ca, err := readAuthorities(data, a.opts.Now())
	if err != nil {
		return nil, fmt.Errorf("CA in secret %s: %w; restore the secret from a backup. If there is none, delete it: "+
			"a new CA is made, and every edge has to join again", caSecret.name, err)
	}
	return ca, nil
}

// readAuthorities decodes the CA's Secret, and checks that the CA can sign.
func readAuthorities(data map[string][]byte, now time.Time) (*authorities, error) {
	ca, err := decodeAuthorities(data)
	if err != nil {
		return nil, err
	}
	return ca, ca.pair.checkCA(now)
}

// CheckCA reports why New would refuse the data of the CA's Secret, or nil.
func CheckCA(data map[string][]byte, now time.Time) error {
	_, err := readAuthorities(data, now)
	return err
}

// keepFiles writes the files' content to the Secret, where other replicas and `gettoken` find it.
func (a *Authority) keepFiles(ctx context.Context, s pairSecret, p pair) error {
	_, wrote, err := update(ctx, a.secrets, s.name, func(old map[string][]byte) (map[string][]byte, error) {
		if had, err := s.decode(old); err == nil && had.cert.Equal(p.cert) && had.key.Equal(p.key) {
			return nil, nil
		}
		return s.encode(p)
	})
	if wrote {
		klog.InfoS("The secret holds the certificate of the files now", "secret", s.name)
	}
	return err
}

// refreshServer makes sure that the servers' certificate is good: signed by the CA, for all addresses, and not near its
// expiry.
func (a *Authority) refreshServer(ctx context.Context) error {
	cert, key, err := certs.ReadPair(a.opts.CertFile, a.opts.KeyFile)
	if err != nil {
		return fmt.Errorf("server certificate from files: %w; keep both files or neither", err)
	}
	if cert != nil {
		return a.serverFromFiles(ctx, pair{cert, key})
	}
	var because []string
	data, wrote, err := update(ctx, a.secrets, serverSecret.name, func(old map[string][]byte) (
		map[string][]byte, error,
	) {
		had, err := serverSecret.decode(old)
		if err == nil {
			if because = serverFaults(had.cert, certs.Pool(a.CA()), a.opts.Addresses, a.opts.Now()); len(because) == 0 {
				return nil, nil
			}
		}
		p, err := a.newServer(had.cert)
		if err != nil {
			return nil, err
		}
		return serverSecret.encode(p)
	})
	if err != nil {
		return err
	}
	p, err := serverSecret.decode(data)
	if err != nil {
		return fmt.Errorf("server certificate in secret %s: %w; delete the secret to have it recreated",
			serverSecret.name, err)
	}
	if wrote {
		klog.InfoS("Made a certificate for the servers of the link", "secret", serverSecret.name,
			"addresses", sansOf(p.cert), "because", because)
	}
	a.server.Store(&p)
	return nil
}

func (a *Authority) serverFromFiles(ctx context.Context, p pair) error {
	if had := a.server.Load(); had == nil || !had.cert.Equal(p.cert) {
		for _, fault := range serverFaults(p.cert, certs.Pool(a.CA()), a.opts.Addresses, a.opts.Now()) {
			klog.InfoS("The server certificate's file has a problem; edges may refuse it",
				"file", a.opts.CertFile, "fault", fault)
		}
	}
	a.server.Store(&p)
	a.ownFile.Store(true)
	return a.keepFiles(ctx, serverSecret, p)
}

// refreshEvery is how often Run checks for due work.
const refreshEvery = 10 * time.Minute

// Run renews the server certificate and the general token, and applies changes of the Secrets by others, until ctx
// ends.
func (a *Authority) Run(ctx context.Context) error {
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { a.watchSecrets(ctx) })
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-a.due:
		}
		if err := a.Refresh(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Certificates and tokens of the link not refreshed; trying again", "in", refreshEvery)
		}
	}
}

// Refresh does what is due now.
func (a *Authority) Refresh(ctx context.Context) error {
	if err := a.refreshTokenKey(ctx); err != nil {
		return err
	}
	if err := a.refreshServer(ctx); err != nil {
		return err
	}
	if err := a.pruneRevocations(ctx); err != nil {
		return err
	}
	return a.refreshToken(ctx)
}

// CA returns the CA's certificate.
func (a *Authority) CA() *x509.Certificate { return a.ca.Load().cert }

// Pool returns the CAs that are trusted for nodes' certificates now.
func (a *Authority) Pool() *x509.CertPool { return a.ca.Load().pool }

// ServerTLS returns the configuration of the link's servers; renewed certificates are used from the next connection on.
// With tls.RequireAndVerifyClientCert only nodes of a trusted CA can connect.
func (a *Authority) ServerTLS(auth tls.ClientAuthType) *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		ClientAuth: auth,
		Time:       a.opts.Now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c := a.server.Load().tls(a.chain()...)
			return &c, nil
		},
	}
	if auth == tls.RequireAndVerifyClientCert {
		a.VerifyClients(config)
	}
	return config
}

// VerifyClients makes a server's configuration check clients against the CAs trusted at that moment. A tls.Config alone
// would keep the CAs of its creation.
func (a *Authority) VerifyClients(config *tls.Config) {
	config.ClientAuth, config.ClientCAs = tls.RequireAnyClientCert, nil
	config.VerifyConnection = func(state tls.ConnectionState) error { // covers resumed sessions as well
		return certs.VerifyClient(state.PeerCertificates[0], a.Pool(), a.opts.Now())
	}
}

// isIP reports whether an address is an IP address.
func isIP(address string) bool { return net.ParseIP(address) != nil }
