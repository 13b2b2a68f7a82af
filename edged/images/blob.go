package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
)

// A runtime fetches nothing of an image that it has unpacked, and CRI has no call to fetch one blob. This is the small
// part of https://github.com/opencontainers/distribution-spec that is needed for it.

// ErrNoDirectAccess is an error of Blob when the registry is unreachable or refuses the request. The runtime may get
// the image all the same: by a mirror, or with a certificate that only its configuration names.
var ErrNoDirectAccess = errors.New("the agent has no direct access to the registry")

const (
	// answerTimeout is how long a registry may take to begin an answer.
	answerTimeout = time.Minute
	// maxHeader limits the header of an answer, maxToken the answer of a registry's authorization server.
	maxHeader, maxToken = 64 << 10, 64 << 10
	// manifestTypes are those of documents that a registry serves as manifests only.
	manifestTypes = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, " +
		"application/vnd.docker.distribution.manifest.v2+json, " +
		"application/vnd.docker.distribution.manifest.list.v2+json"
)

// Blob returns the bytes of a blob or manifest of an image, as its registry sends them, with the rights of pull secrets
// or of the node. The caller has to compare them with the digest, and to close the reader.
func (p *Puller) Blob(ctx context.Context, image, digest string, secrets []v1.Secret) (io.ReadCloser, error) {
	if IsID(image) {
		return nil, fmt.Errorf("%s is the ID of an image; it is in no registry", image)
	}
	named, err := parse(image)
	if err != nil {
		return nil, err
	}
	creds, err := credentials(secrets, p.node(), image)
	if err != nil {
		return nil, err
	}
	if len(creds) == 0 {
		creds = []credential{{}}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	transport.ResponseHeaderTimeout, transport.MaxResponseHeaderBytes = answerTimeout, maxHeader
	var errs []error
	for _, cred := range creds {
		r := registry{client: &http.Client{Transport: transport}, named: named, cred: cred}
		body, err := r.open(ctx, digest)
		if err == nil {
			return watchBody(ctx, body, p.opts.ProgressTimeout, cancel), nil
		}
		errs = append(errs, err)
	}
	cancel(nil)
	return nil, errors.Join(errs...)
}

// body is a blob that is being fetched.
type body struct {
	io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timeout time.Duration
	stalled *time.Timer
}

// watchBody ends a fetch that makes no progress for so long.
func watchBody(
	ctx context.Context, r io.ReadCloser, timeout time.Duration, cancel context.CancelCauseFunc,
) *body {
	return &body{r, ctx, cancel, timeout, time.AfterFunc(timeout, func() {
		cancel(fmt.Errorf("nothing came from the registry for %v", timeout))
	})}
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.stalled.Reset(b.timeout)
	}
	if err != nil && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *body) Close() error {
	b.stalled.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// registry is that of an image, with one credential.
type registry struct {
	client *http.Client
	named  reference.Named
	cred   credential
	// authorization is the header that it has asked for.
	authorization string
}

// refused is a status with which a registry or its authorization server does not give what it is asked for.
type refused struct {
	host   string
	status int
}

func (e *refused) Error() string {
	return fmt.Sprintf("%s answers %d %s", e.host, e.status, http.StatusText(e.status))
}

// Is reports whether others may be given what was refused here. A registry that is overloaded or out of order is as
// good as one without a link to it.
func (e *refused) Is(target error) bool {
	return target == ErrNoDirectAccess && e.status < http.StatusInternalServerError &&
		e.status != http.StatusTooManyRequests && e.status != http.StatusRequestTimeout
}

// open asks for a blob, and for a manifest where there is no such blob.
func (r *registry) open(ctx context.Context, digest string) (io.ReadCloser, error) {
	blob, err := r.get(ctx, r.address("blobs", digest))
	if missing, ok := errors.AsType[*refused](err); ok && missing.status == http.StatusNotFound {
		blob, err = r.get(ctx, r.address("manifests", digest))
	}
	return blob, err
}

func (r *registry) address(kind, digest string) *url.URL {
	u := &url.URL{Scheme: "https", Host: reference.Domain(r.named)}
	u.Path = "/v2/" + reference.Path(r.named) + "/" + kind + "/" + digest
	switch {
	case u.Host == "docker.io":
		u.Host = "registry-1.docker.io"
	case local(u.Hostname()): // as runtimes do
		u.Scheme = "http"
	}
	return u
}

func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// get gets what is at an address, and authorizes itself if it is asked to.
func (r *registry) get(ctx context.Context, at *url.URL) (io.ReadCloser, error) {
	resp, err := r.request(ctx, at)
	if err != nil {
		return nil, errors.Join(ErrNoDirectAccess, err)
	}
	if resp.StatusCode == http.StatusUnauthorized && r.authorization == "" {
		challenges := resp.Header.Values("WWW-Authenticate")
		resp.Body.Close()
		if r.authorization, err = r.authorize(ctx, at, challenges); err != nil {
			return nil, err
		}
		if r.authorization == "" {
			return nil, &refused{at.Host, resp.StatusCode}
		}
		if resp, err = r.request(ctx, at); err != nil {
			return nil, err
		}
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, &refused{at.Host, resp.StatusCode}
	}
	return resp.Body, nil
}

func (r *registry) request(ctx context.Context, at *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", manifestTypes+", */*")
	if r.authorization != "" {
		req.Header.Set("Authorization", r.authorization)
	}
	return r.do(req)
}

// do sends a request. Its error shows no address but the host: that to which a registry redirects may hold a signature.
func (r *registry) do(req *http.Request) (*http.Response, error) {
	resp, err := r.client.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("%s: %w", req.URL.Host, failed.Err)
	}
	return resp, err
}

// authorize returns the header that meets one of the challenges of a registry; "" if it meets none.
func (r *registry) authorize(ctx context.Context, at *url.URL, challenges []string) (string, error) {
	if r.cred.RegistryToken != "" {
		return "Bearer " + r.cred.RegistryToken, nil
	}
	for _, c := range challenges {
		scheme, text, _ := strings.Cut(strings.TrimSpace(c), " ")
		switch {
		case strings.EqualFold(scheme, "bearer"):
			token, err := r.token(ctx, at, parameters(text))
			if err != nil {
				return "", fmt.Errorf("token for the registry: %w", err)
			}
			return "Bearer " + token, nil
		case strings.EqualFold(scheme, "basic") && r.cred.Username != "":
			req := http.Request{Header: http.Header{}}
			req.SetBasicAuth(r.cred.Username, r.cred.Password)
			return req.Header.Get("Authorization"), nil
		}
	}
	return "", nil
}

var parameter = regexp.MustCompile(`([a-zA-Z]+)="([^"]*)"`)

// parameters are those of a challenge.
func parameters(text string) map[string]string {
	found := map[string]string{}
	for _, match := range parameter.FindAllStringSubmatch(text, -1) {
		found[strings.ToLower(match[1])] = match[2]
	}
	return found
}

// token gets one from the authorization server of a registry.
func (r *registry) token(ctx context.Context, at *url.URL, asked map[string]string) (string, error) {
	realm, err := url.Parse(asked["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != at.Scheme {
		return "", errors.New("the registry names no address from which a token is got safely")
	}
	form := url.Values{"scope": {"repository:" + reference.Path(r.named) + ":pull"}}
	if service := asked["service"]; service != "" {
		form.Set("service", service)
	}
	req, err := r.tokenRequest(ctx, realm, form)
	if err != nil {
		return "", err
	}
	resp, err := r.do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", &refused{realm.Host, resp.StatusCode}
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxToken))
	if err != nil {
		return "", err
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if json.Unmarshal(data, &answer) != nil || answer.Token == "" && answer.AccessToken == "" {
		return "", fmt.Errorf("%s answers without a token", realm.Host)
	}
	if answer.Token != "" {
		return answer.Token, nil
	}
	return answer.AccessToken, nil
}

func (r *registry) tokenRequest(ctx context.Context, realm *url.URL, form url.Values) (*http.Request, error) {
	if r.cred.IdentityToken != "" {
		form.Set("grant_type", "refresh_token")
		form.Set("refresh_token", r.cred.IdentityToken)
		form.Set("client_id", "edgecore")
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(form.Encode()))
		if err == nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		return req, err
	}
	at := *realm
	query := at.Query()
	for name := range form {
		query.Set(name, form.Get(name))
	}
	at.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err == nil && r.cred.Username != "" {
		req.SetBasicAuth(r.cred.Username, r.cred.Password)
	}
	return req, err
}
