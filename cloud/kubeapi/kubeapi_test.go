package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/version"
)

const kubeconfigFile = `apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: https://192.0.2.1:6443}
users:
- name: u
  user: {token: abc}
contexts:
- name: x
  context: {cluster: c, user: u}
current-context: x
`

func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfigFile), 0o600); err != nil {
		t.Fatal(err)
	}
	inCluster := func() (*rest.Config, error) { return &rest.Config{Host: "in-cluster"}, nil }
	nowhere := func() (*rest.Config, error) { return nil, rest.ErrNotInCluster }
	const protobuf, asJSON = v1alpha1.ContentTypeProtobuf, v1alpha1.ContentTypeJSON
	for name, tc := range map[string]struct {
		cfg       v1alpha1.KubeAPIConfig
		inCluster func() (*rest.Config, error)
		want      []string // host, token, content type, accepted types
		err       string
	}{
		"a kubeconfig": {
			v1alpha1.KubeAPIConfig{KubeConfig: file, ContentType: protobuf}, nowhere,
			[]string{"https://192.0.2.1:6443", "abc", protobuf, protobuf + "," + asJSON}, "",
		},
		"a kubeconfig and master": {
			v1alpha1.KubeAPIConfig{KubeConfig: file, Master: "https://192.0.2.9", ContentType: asJSON}, nowhere,
			[]string{"https://192.0.2.9", "abc", asJSON, asJSON}, "",
		},
		"a master": {v1alpha1.KubeAPIConfig{Master: "http://127.0.0.1:8080", ContentType: asJSON},
			nowhere, []string{"http://127.0.0.1:8080", "", asJSON, asJSON}, ""},
		"the pod's": {
			v1alpha1.KubeAPIConfig{ContentType: protobuf}, inCluster,
			[]string{"in-cluster", "", protobuf, protobuf + "," + asJSON}, "",
		},
		"none": {
			v1alpha1.KubeAPIConfig{}, nowhere, nil, "set kubeAPIConfig.kubeConfig to the path of a kubeconfig",
		},
		"no token in the pod": {v1alpha1.KubeAPIConfig{}, func() (*rest.Config, error) {
			return nil, errors.New("no such file")
		}, nil,
			"the pod's service account: no such file"},
		"no file": {v1alpha1.KubeAPIConfig{KubeConfig: "/none"}, nowhere, nil, `kubeAPIConfig.kubeConfig "/none": `},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.QPS, tc.cfg.Burst = 50, 100
			rc, err := Config(&tc.cfg, tc.inCluster)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %q in it", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, []string{
				rc.Host, rc.BearerToken, rc.ContentType, rc.AcceptContentTypes,
			}); diff != "" {
				t.Errorf("client configuration mismatch (-want +got):\n%s", diff)
			}
			if rc.QPS != 50 || rc.Burst != 100 || rc.UserAgent != "cloudcore/"+version.Version() {
				t.Errorf("qps %v, burst %d, agent %q; want 50, 100, %q", rc.QPS, rc.Burst, rc.UserAgent,
					"cloudcore/"+version.Version())
			}
		})
	}
}

// TestAwait: cloudcore waits for an API server that is starting, says what it waits for, and gives up when its
// credentials are refused.
func TestAwait(t *testing.T) {
	namespaces := schema.GroupResource{Resource: "namespaces"}
	for name, tc := range map[string]struct {
		answers []error // one a question
		waited  time.Duration
		err     string
	}{
		"there":        {[]error{nil}, 0, ""},
		"no namespace": {[]error{apierrors.NewNotFound(namespaces, "kubeedge")}, 0, ""},
		"not for us":   {[]error{apierrors.NewForbidden(namespaces, "kubeedge", errors.New("no"))}, 0, ""},
		"starting": {
			[]error{
				errors.New("connection refused"), errors.New("connection refused"),
				apierrors.NewServiceUnavailable("soon"), nil,
			}, 6 * time.Second, "",
		},
		"refused": {[]error{errors.New("connection refused"), apierrors.NewUnauthorized("no")}, time.Second,
			"refuses cloudcore's credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				asked := 0
				client.PrependReactor("get", "namespaces", func(clientgotesting.Action) (bool, runtime.Object, error) {
					asked++
					return true, &v1.Namespace{}, tc.answers[asked-1]
				})
				began := time.Now()
				var last error
				err := Await(t.Context(), client, func(err error) { last = err })
				if (tc.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %q", err, tc.err)
				}
				// delays have a random part
				if got := time.Since(began); got < tc.waited || got > tc.waited+tc.waited/4 {
					t.Errorf("waited %v, want %v to a quarter more", got, tc.waited)
				}
				if (last != nil) != (asked > 1) {
					t.Errorf("asked %d times and reported %v, want a report after a second question alone", asked, last)
				}
			})
		})
	}
}

// TestAwaitEnds: the wait ends with its context.
func TestAwaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("get", "namespaces", func(clientgotesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second) // between two questions
		defer cancel()
		asked := 0
		if err := Await(ctx, client, func(error) { asked++ }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v, want %v", err, context.DeadlineExceeded)
		}
		if asked < 17 || asked > 21 { // after 0, 1, 3, 6, 9 ... 57 s, or up to a quarter later each time
			t.Errorf("asked %d times, want 17 to 21", asked)
		}
	})
}

// TestAwaitPermission: what is forbidden may be allowed a moment later.
func TestAwaitPermission(t *testing.T) {
	forbidden := fmt.Errorf("secret x: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "x",
		errors.New("no")))
	other := errors.New("other")
	for name, tc := range map[string]struct {
		refusals int
		then     error
		waited   time.Duration
		err      error
	}{
		"at once":   {0, nil, 0, nil},
		"soon":      {3, nil, 3 * time.Second, nil},
		"other":     {2, other, 2 * time.Second, other},
		"for good":  {1000, nil, rbacDelay, forbidden},
		"to be had": {15, nil, rbacDelay, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, asked, told := time.Now(), 0, 0
				err := AwaitPermission(t.Context(), func(error) { told++ }, func() error {
					if asked++; asked <= tc.refusals {
						return forbidden
					}
					return tc.then
				})
				if !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
					t.Errorf("%v, want %v", err, tc.err)
				}
				if got := time.Since(began); got != tc.waited || told != asked-1 {
					t.Errorf("asked %d times in %v, told %d times; want %v, and told each time but the last", asked,
						got,
						told, tc.waited)
				}
			})
		})
	}
}

// TestServer: the CA is read, as edges ask for it, and an API server that lets nobody act for nodes is named.
func TestServer(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no")).ErrStatus)
	}))
	defer server.Close()
	ca := certs.EncodeCertPEM(server.Certificate().Raw)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		tls       rest.TLSClientConfig
		want, err string
		connect   string
	}{
		"in place":   {rest.TLSClientConfig{CAData: ca}, string(ca), "", "apply deploy/cloudcore/base/rbac.yaml"},
		"a file":     {rest.TLSClientConfig{CAFile: file}, string(ca), "", "apply deploy/cloudcore/base/rbac.yaml"},
		"none":       {rest.TLSClientConfig{}, "", "", "certificate signed by unknown authority"},
		"no file":    {rest.TLSClientConfig{CAFile: file + ".none"}, "", "kube-apiserver " + server.URL, ""},
		"no content": {rest.TLSClientConfig{CAData: []byte("x")}, "", "kube-apiserver " + server.URL, ""},
	} {
		api, err := New(&rest.Config{Host: server.URL, TLSClientConfig: tc.tls})
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want %q in it", name, err, tc.err)
			}
			continue
		}
		if err != nil || string(api.CA) != tc.want {
			t.Errorf("%s: CA %q, %v; want %q", name, api.CA, err, tc.want)
			continue
		}
		if _, err := api.Connect(t.Context()); err == nil || !strings.Contains(err.Error(), tc.connect) {
			t.Errorf("%s: %v, want %q in it", name, err, tc.connect)
		}
	}
}
