// Package twin sends the same requests to two servers of the Kubernetes API, kube-apiserver and an endpoint that should
// answer as it does, and compares the answers field by field. Requests are made from a seed. What they write, each
// server gets in a namespace of its own, so that both start from the same objects.
package twin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Namespace is written in requests for the namespace of the server that is asked.
const Namespace = "{namespace}"

// Side is one of the two servers.
type Side struct {
	Name string
	// URL has no path: "https://127.0.0.1:6443".
	URL string
	// Namespace is that of what is written through this side.
	Namespace string
	// Token is sent with each request that has none of its own.
	Token  string
	Client *http.Client
}

// Request is a request to both sides. Namespace stands in Path and Body for the side's own.
type Request struct {
	// Kind says what the request tests: "list, Table".
	Kind   string
	Method string
	Path   string
	Header map[string]string
	Body   string
	// Watch is how many events are read before the request is ended; 0 reads the answer to its end.
	Watch int
}

// String returns the request in a line.
func (r Request) String() string { return fmt.Sprintf("%s: %s %s", r.Kind, r.Method, r.Path) }

// Answer is what is compared.
type Answer struct {
	Code   int
	Header map[string][]string
	// Body is decoded JSON, a list of decoded events, or text.
	Body any
}

// comparedHeaders are the headers that clients act on. Content-Encoding and Vary are not: an endpoint may compress
// other answers than kube-apiserver does.
var comparedHeaders = []string{
	"Content-Type", "Retry-After", "Warning", "Www-Authenticate", "Allow", "Location", "Cache-Control", "Etag",
	"Transfer-Encoding", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
}

// maxBody bounds an answer: the largest is the OpenAPI document.
const maxBody = 64 << 20

// Do sends a request to a side. An error is one of the connection.
func (s Side) Do(ctx context.Context, r Request) (*Answer, error) {
	fill := strings.NewReplacer(Namespace, s.Namespace)
	var body io.Reader
	if r.Body != "" {
		body = strings.NewReader(fill.Replace(r.Body))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, s.URL+fill.Replace(r.Path), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	req.Header.Set("User-Agent", "twin")
	for key, value := range r.Header {
		if value == "" {
			req.Header.Del(key)
		} else {
			req.Header.Set(key, value)
		}
	}
	res, err := s.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	a := &Answer{Code: res.StatusCode, Header: map[string][]string{}}
	for _, key := range comparedHeaders {
		if values := res.Header.Values(key); len(values) > 0 {
			a.Header[key] = values
		}
	}
	mediaType, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	n := normal{side: s}
	if r.Watch > 0 && res.StatusCode == http.StatusOK {
		a.Body, err = n.events(res.Body, r.Watch)
		return a, err
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if mediaType != "application/json" || r.Method == http.MethodHead {
		a.Body = n.text(string(data))
		return a, nil
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return nil, fmt.Errorf("the answer is no JSON: %w: %.200s", err, data)
	}
	a.Body = n.value("", value)
	return a, nil
}

// normal replaces what differs by its nature: the name of the side's namespace, and what the server makes up anew for
// each object.
type normal struct{ side Side }

var (
	uid     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	suffix  = regexp.MustCompile(`\b(twin-\d+-\d+-)[a-z0-9]{5}\b`) // of a generated name
	moment  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	version = regexp.MustCompile(`("?)\b\d{2,}\b("?)`)
)

// ownKeys are keys whose values each server makes up for each object or list.
var ownKeys = []string{"resourceVersion", "uid", "creationTimestamp", "deletionTimestamp", "time", "continue", "token"}

func (n normal) text(s string) string {
	s = strings.ReplaceAll(s, n.side.Namespace, Namespace)
	return moment.ReplaceAllString(uid.ReplaceAllString(suffix.ReplaceAllString(s, "${1}SUFFIX"), "UID"), "TIME")
}

// value replaces values in decoded JSON. key is the one that the value is under.
func (n normal) value(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = n.value(k, v[k])
		}
		return v
	case []any:
		for i := range v {
			v[i] = n.value(key, v[i])
		}
		return v
	case string:
		if v != "" && slices.Contains(ownKeys, key) {
			return "OWN"
		}
		s := n.text(v)
		if key == "message" || key == "reason" {
			s = version.ReplaceAllString(s, "${1}N${2}")
		}
		return s
	}
	return v
}

// events reads so many events of a watch.
func (n normal) events(body io.Reader, count int) (any, error) {
	dec := json.NewDecoder(body)
	var out []any
	for len(out) < count {
		var event any
		if err := dec.Decode(&event); err == io.EOF {
			return append(out, "END"), nil
		} else if err != nil {
			return nil, fmt.Errorf("event %d: %w", len(out), err)
		}
		out = append(out, n.value("", event))
	}
	return out, nil
}

// Difference is a request that the two sides answered differently.
type Difference struct {
	Number  int
	Request Request
	Diff    string
}

// String returns the request and the difference.
func (d Difference) String() string {
	return fmt.Sprintf("request %d, %s:\n%s", d.Number, d.Request, d.Diff)
}

// Compare sends requests to both sides, one after the other, and returns the differences. Each request is sent to both
// sides at the same time. isKnown reports whether a difference is declared: those are left out.
func Compare(
	ctx context.Context, cluster, endpoint Side, requests []Request, isKnown func(Request, *Answer, *Answer) bool,
) []Difference {
	var out []Difference
	for i, r := range requests {
		type result struct {
			answer *Answer
			err    error
		}
		other := make(chan result, 1)
		go func() {
			a, err := endpoint.Do(ctx, r)
			other <- result{a, err}
		}()
		a, err := cluster.Do(ctx, r)
		b := <-other
		diff := ""
		switch {
		case err != nil || b.err != nil:
			if fmt.Sprint(err) != fmt.Sprint(b.err) {
				diff = fmt.Sprintf("%s: %v; %s: %v", cluster.Name, err, endpoint.Name, b.err)
			}
		case isKnown == nil || !isKnown(r, a, b.answer):
			diff = cmp.Diff(a, b.answer)
		}
		if diff != "" {
			out = append(out, Difference{i, r, diff})
		}
	}
	return out
}

// Requests makes n requests from a seed. Of those that are written, each kind is there at least once when n is at least
// len(Kinds()).
func Requests(seed uint64, n int) []Request {
	rnd := rand.New(rand.NewPCG(seed, 0))
	g := &generator{rnd: rnd, seed: seed}
	var out []Request
	order := rnd.Perm(len(kinds))
	for len(out) < n {
		for _, i := range order {
			k := kinds[i]
			for _, r := range k.make(g) {
				r.Kind = k.name
				out = append(out, r)
			}
			if len(out) >= n {
				break
			}
		}
		order = rnd.Perm(len(kinds))
	}
	return out
}

// Kinds are the names of all kinds of requests.
func Kinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// jsonOf encodes what a test wrote down.
func jsonOf(v any) string {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		panic(err) // maps of strings and numbers can be encoded
	}
	return strings.TrimSpace(b.String())
}
