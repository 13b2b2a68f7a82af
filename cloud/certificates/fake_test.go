package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// fakeSecrets is the API's part of the matter: a secret is created once, and an update has to be of the
// version that was read.
type fakeSecrets struct {
	mu      sync.Mutex
	secrets map[string]*v1.Secret
	version int
	writes  int
	// before is called ahead of each write, without the lock: there others can be faster.
	before func(name string)
	// fail is what each call fails with.
	fail     error
	watchers []*watch.RaceFreeFakeWatcher
}

var secretsResource = schema.GroupResource{Resource: "secrets"}

func newFakeSecrets() *fakeSecrets { return &fakeSecrets{secrets: map[string]*v1.Secret{}} }

func (f *fakeSecrets) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1.Secret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	s, ok := f.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(secretsResource, name)
	}
	return s.DeepCopy(), nil
}

func (f *fakeSecrets) Create(_ context.Context, s *v1.Secret, _ metav1.CreateOptions) (*v1.Secret, error) {
	return f.write(s, func(old *v1.Secret) error {
		if old != nil {
			return apierrors.NewAlreadyExists(secretsResource, s.Name)
		}
		return nil
	})
}

func (f *fakeSecrets) Update(_ context.Context, s *v1.Secret, _ metav1.UpdateOptions) (*v1.Secret, error) {
	return f.write(s, func(old *v1.Secret) error {
		switch {
		case old == nil:
			return apierrors.NewNotFound(secretsResource, s.Name)
		case old.ResourceVersion != s.ResourceVersion:
			return apierrors.NewConflict(secretsResource, s.Name, nil)
		}
		return nil
	})
}

func (f *fakeSecrets) write(s *v1.Secret, check func(old *v1.Secret) error) (*v1.Secret, error) {
	if f.before != nil {
		f.before(s.Name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	if err := check(f.secrets[s.Name]); err != nil {
		return nil, err
	}
	f.version++
	f.writes++
	s = s.DeepCopy()
	s.ResourceVersion = strconv.Itoa(f.version)
	f.secrets[s.Name] = s
	for _, w := range f.watchers {
		w.Modify(s.DeepCopy())
	}
	return s.DeepCopy(), nil
}

func (f *fakeSecrets) List(context.Context, metav1.ListOptions) (*v1.SecretList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	list := &v1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}}
	for _, s := range f.secrets {
		list.Items = append(list.Items, *s.DeepCopy())
	}
	return list, nil
}

// Watch begins with everything there is, so that nothing is missed after a List.
func (f *fakeSecrets) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	w := watch.NewRaceFreeFake()
	for _, s := range f.secrets {
		w.Modify(s.DeepCopy())
	}
	f.watchers = append(f.watchers, w)
	return w, nil
}

func (f *fakeSecrets) IsWatchListSemanticsUnSupported() bool { return true }

func (f *fakeSecrets) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	s := f.secrets[name]
	delete(f.secrets, name)
	for _, w := range f.watchers {
		w.Delete(s)
	}
}

func (f *fakeSecrets) data(name, key string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.secrets[name]; s != nil {
		return s.Data[key]
	}
	return nil
}

// fakeNodes are the names that are taken.
type fakeNodes map[string]error

func (f fakeNodes) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1.Node, error) {
	err, ok := f[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	return &v1.Node{}, err
}

// clock is one that a test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func newTestAuthority(t *testing.T, secrets Secrets, c *clock, change ...func(*Options)) *Authority {
	t.Helper()
	opts := Options{Addresses: []string{"127.0.0.1", "cloud.example"}, Now: c.now}
	for _, f := range change {
		f(&opts)
	}
	a, err := New(t.Context(), secrets, opts)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// serve runs the endpoints on a port of their own, and returns its address.
func serve(t *testing.T, a *Authority, nodes Nodes) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- a.Serve(ctx, listener, nodes) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return listener.Addr().String()
}

// device asks as an edge does.
type device struct {
	t       *testing.T
	address string
	a       *Authority
	cert    *tls.Certificate
}

// answer is what came back.
type answer struct {
	status int
	body   string
	header http.Header
}

func (d *device) get(path string, body []byte, header map[string]string) answer {
	d.t.Helper()
	config := &tls.Config{RootCAs: d.a.Pool(), Time: d.a.opts.Now}
	if d.cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return d.cert, nil }
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: time.Minute,
	}
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, "https://"+d.address+path,
		strings.NewReader(string(body)))
	if err != nil {
		d.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return answer{resp.StatusCode, string(data), resp.Header}
}

// request makes a key and a request for a name.
func request(t testing.TB, node string) ([]byte, tls.Certificate) {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := certs.NewRequest(node, key)
	if err != nil {
		t.Fatal(err)
	}
	return der, tls.Certificate{PrivateKey: key}
}

// certFor makes a certificate past all checks.
func certFor(t testing.TB, a *Authority, node string) *tls.Certificate {
	t.Helper()
	der, c := request(t, node)
	req, err := certs.ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := a.SignNode(node, req)
	if err != nil {
		t.Fatal(err)
	}
	c.Certificate = [][]byte{raw}
	if c.Leaf, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	return &c
}
