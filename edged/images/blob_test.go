package images

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// TestBlob: what a registry may ask for before it sends a blob, and which errors leave the runtime another way.
func TestBlob(t *testing.T) {
	const content = "the bytes of a blob"
	blobs, manifests := "/v2/team/app/blobs/"+digest, "/v2/team/app/manifests/"+digest
	as := func(w http.ResponseWriter, r *http.Request, authorization, challenge string) {
		switch {
		case r.Header.Get("Authorization") == authorization:
			fmt.Fprint(w, content)
		default:
			w.Header().Set("WWW-Authenticate", challenge)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	bearer := func(realm string) string { return fmt.Sprintf(`Bearer realm=%q,service="reg",scope="other"`, realm) }
	for name, tc := range map[string]struct {
		serve   func(w http.ResponseWriter, r *http.Request, at string)
		secrets func(host string) []v1.Secret
		asked   []string
		err     string
		other   bool // the runtime may have another way
	}{
		"anonymous": {
			serve: func(w http.ResponseWriter, _ *http.Request, _ string) { fmt.Fprint(w, content) },
			asked: []string{blobs},
		},
		"a manifest": {
			serve: func(w http.ResponseWriter, r *http.Request, _ string) {
				if r.URL.Path != manifests || !strings.Contains(r.Header.Get("Accept"), "oci.image.index") {
					http.NotFound(w, r)
					return
				}
				fmt.Fprint(w, content)
			},
			asked: []string{blobs, manifests},
		},
		"user and password, the second": {
			serve: func(w http.ResponseWriter, r *http.Request, _ string) {
				as(w, r, "Basic cmlnaHQ6cGFzc3dvcmQ=", `Basic realm="reg"`)
			},
			secrets: func(host string) []v1.Secret {
				return []v1.Secret{secret(host, "right"), secret(host+"/team", "wrong")}
			},
			asked: []string{blobs, blobs, blobs, blobs},
		},
		"a token": {
			serve: func(w http.ResponseWriter, r *http.Request, at string) {
				if r.URL.Path == "/token" {
					user, _, _ := r.BasicAuth()
					fmt.Fprintf(w, `{"token":%q}`, user+" "+r.FormValue("service")+" "+r.FormValue("scope"))
					return
				}
				as(w, r, "Bearer right reg repository:team/app:pull", bearer(at+"/token"))
			},
			secrets: func(host string) []v1.Secret { return []v1.Secret{secret(host, "right")} },
			asked:   []string{blobs, "/token", blobs},
		},
		"a token for an identity": {
			serve: func(w http.ResponseWriter, r *http.Request, at string) {
				if r.URL.Path == "/token" {
					fmt.Fprintf(w, `{"access_token":%q}`, r.Method+" "+r.PostFormValue("refresh_token"))
					return
				}
				as(w, r, "Bearer POST me", bearer(at+"/token"))
			},
			secrets: func(host string) []v1.Secret {
				s := secret(host, "")
				s.Data[v1.DockerConfigJsonKey] = []byte(`{"auths":{"` + host + `":{"identitytoken":"me"}}}`)
				return []v1.Secret{s}
			},
			asked: []string{blobs, "/token", blobs},
		},
		"a redirect to another host": {
			serve: func(w http.ResponseWriter, r *http.Request, at string) {
				if r.URL.Path == "/storage" {
					fmt.Fprint(w, content+r.Header.Get("Authorization"))
					return
				}
				if r.Header.Get("Authorization") == "" {
					as(w, r, "none", `Basic realm="reg"`)
					return
				}
				other := strings.Replace(at, "127.0.0.1", "localhost", 1)
				http.Redirect(w, r, other+"/storage", http.StatusTemporaryRedirect)
			},
			secrets: func(host string) []v1.Secret { return []v1.Secret{secret(host, "right")} },
			asked:   []string{blobs, blobs, "/storage"},
		},
		"no rights": {
			serve: func(w http.ResponseWriter, r *http.Request, _ string) { as(w, r, "none", `Basic realm="reg"`) },
			asked: []string{blobs}, err: "401 Unauthorized", other: true,
		},
		"no such blob": {
			serve: func(w http.ResponseWriter, r *http.Request, _ string) { http.NotFound(w, r) },
			asked: []string{blobs, manifests}, err: "404 Not Found", other: true,
		},
		"out of order": {
			serve: func(w http.ResponseWriter, _ *http.Request, _ string) { http.Error(w, "", http.StatusBadGateway) },
			asked: []string{blobs}, err: "502 Bad Gateway",
		},
		"overloaded": {
			serve: func(w http.ResponseWriter, _ *http.Request, _ string) {
				http.Error(w, "", http.StatusTooManyRequests)
			},
			asked: []string{blobs}, err: "429 Too Many Requests",
		},
		"no answer": {
			serve: func(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) },
			asked: []string{blobs}, err: "EOF", other: true,
		},
		"a redirect with a signature to nowhere": {
			serve: func(w http.ResponseWriter, r *http.Request, _ string) {
				http.Redirect(w, r, "http://127.0.0.1:1/?signature=secret", http.StatusTemporaryRedirect)
			},
			asked: []string{blobs}, err: "connection refused", other: true,
		},
		"a token from nowhere": {
			serve: func(w http.ResponseWriter, r *http.Request, _ string) { as(w, r, "none", bearer("ftp://x/token")) },
			asked: []string{blobs}, err: "no address from which a token is got safely",
		},
		"an answer without a token": {
			serve: func(w http.ResponseWriter, r *http.Request, at string) {
				if r.URL.Path == "/token" {
					fmt.Fprint(w, `{}`)
					return
				}
				as(w, r, "none", bearer(at+"/token"))
			},
			asked: []string{blobs, "/token"}, err: "without a token",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			server := httptest.NewUnstartedServer(nil)
			server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.Path)
				tc.serve(w, r, server.URL)
			})
			server.Start()
			defer server.Close()
			host := strings.TrimPrefix(server.URL, "http://")
			var secrets []v1.Secret
			if tc.secrets != nil {
				secrets = tc.secrets(host)
			}
			blob, err := New(&service{}, Options{}).Blob(t.Context(), host+"/team/app:1", digest, secrets)
			if err == nil {
				data, readErr := io.ReadAll(blob)
				if string(data) != content {
					t.Errorf("blob = %q, want %q", data, content)
				}
				err = errors.Join(readErr, blob.Close())
			}
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) ||
				errors.Is(err, ErrNoDirectAccess) != tc.other {
				t.Errorf("Blob() = %v, want %q, ErrNoDirectAccess %t", err, tc.err, tc.other)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("Blob() = %v, want no signature in it", err)
			}
			server.Close() // and its handlers
			if diff := cmp.Diff(tc.asked, asked); diff != "" {
				t.Errorf("requests mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBlobStalls: a fetch that makes no progress ends.
func TestBlobStalls(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "some")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	p := New(&service{}, Options{ProgressTimeout: 50 * time.Millisecond})
	blob, err := p.Blob(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/app:1", digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(blob)
	if string(data) != "some" || err == nil || !strings.Contains(err.Error(), "nothing came") {
		t.Errorf("blob = %q, %v, want some bytes and an error", data, err)
	}
	if err := blob.Close(); err != nil {
		t.Error(err)
	}
}

// TestBlobAddress: Docker Hub has another host than its name, and only loopback goes without TLS.
func TestBlobAddress(t *testing.T) {
	for image, want := range map[string]string{
		"busybox":                        "https://registry-1.docker.io/v2/library/busybox/blobs/d",
		"reg.example:5000/a/b@" + digest: "https://reg.example:5000/v2/a/b/blobs/d",
		"localhost:5000/a:1":             "http://localhost:5000/v2/a/blobs/d",
		"[::1]:5000/a":                   "http://[::1]:5000/v2/a/blobs/d",
	} {
		named, err := parse(image)
		if err != nil {
			t.Fatal(err)
		}
		r := registry{named: named}
		if got := r.address("blobs", "d").String(); got != want {
			t.Errorf("address of %s = %s, want %s", image, got, want)
		}
	}
	// What a registry with TLS is told must not go to an address without.
	r := registry{}
	asked := map[string]string{"realm": "http://reg.example/token"}
	if _, err := r.token(t.Context(), &url.URL{Scheme: "https", Host: "reg.example"}, asked); err == nil {
		t.Error("token from an address without TLS = nil, want an error")
	}
	if _, err := New(&service{}, Options{}).Blob(t.Context(), digest, digest, nil); err == nil {
		t.Error("Blob of an ID = nil, want an error")
	}
}
