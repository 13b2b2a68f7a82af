// Package fakes has what tests of edgecontroller's packages use in place of the world: an API server that says what a
// test tells it to, a hub that records its calls, and objects.
package fakes

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// API is an API server that says what a test tells it to.
type API struct {
	Mu sync.Mutex
	// reply answers a request; by default nothing exists.
	reply func(r Call) (code int, body any)
	Calls []Call
	// OnRequest, if set, sees each request.
	OnRequest func(r *http.Request)
}

// Call is a request as the API server saw it.
type Call struct {
	Method, Path, User, Group, Type, Body string
}

// String returns the request in one line.
func (c Call) String() string {
	as := c.User
	if as == "" {
		as = "cloudcore"
	}
	return c.Method + " " + c.Path + " as " + as
}

// NotFound is the answer to a request for something that does not exist.
func NotFound(path string) (int, any) {
	return http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Reason:   metav1.StatusReasonNotFound,
		Code:     http.StatusNotFound,
		Message:  path + " not found",
	}
}

// RoundTrip implements http.RoundTripper.
func (a *API) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.OnRequest != nil {
		a.OnRequest(r)
	}
	w, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(done)
		a.serve(w, r)
	}()
	select {
	case <-done:
		return w.Result(), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			panic(err)
		}
	}
	c := Call{
		Method: r.Method,
		Path:   r.URL.Path,
		User:   r.Header.Get("Impersonate-User"),
		Group:  r.Header.Get("Impersonate-Group"),
		Type:   r.Header.Get("Content-Type"),
		Body:   string(body),
	}
	a.Mu.Lock()
	a.Calls = append(a.Calls, c)
	reply := a.reply
	a.Mu.Unlock()
	code, out := NotFound(c.Path)
	if reply != nil {
		code, out = reply(c)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(out); err != nil {
		panic(err)
	}
}

// Config returns the configuration of a client of the API server.
func (a *API) Config() *rest.Config {
	return &rest.Config{
		Host:          "http://api",
		Transport:     a,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}
}

// Answer sets what answers requests from now on, and forgets the requests so far.
func (a *API) Answer(f func(r Call) (int, any)) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.reply, a.Calls = f, nil
}

// Seen lists the requests.
func (a *API) Seen() []string {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	var out []string
	for _, c := range a.Calls {
		out = append(out, c.String())
	}
	return out
}

// Has makes the API server have these pods, in a list of the version, and nothing else.
func (a *API) Has(version string, pods ...*v1.Pod) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	list.ResourceVersion = version
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	a.Answer(func(c Call) (int, any) {
		if c.Path == "/api/v1/pods" {
			return http.StatusOK, list
		}
		for _, pod := range pods {
			if c.Path == "/api/v1/namespaces/"+pod.Namespace+"/pods/"+pod.Name {
				pod := pod.DeepCopy()
				pod.Kind, pod.APIVersion = "Pod", "v1"
				return http.StatusOK, pod
			}
		}
		return NotFound(c.Path)
	})
}

// Take returns what the API server was asked since the last time.
func (a *API) Take() []string {
	out := a.Seen()
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Calls = nil
	return out
}

// ListPods is the request for the pods of a node.
const ListPods = "GET /api/v1/pods as cloudcore"
