package differential

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// nobody is a user with a certificate of the cluster and no rights.
const nobody = "nobody"

// request is one request to the kubelet's API, as a user: kube.AdminUser, nobody, or "" for one without a certificate.
type request struct {
	user, method, path string
}

// answerLimit is how long an answer may take. A stream that does not end is cut off then, on both sides.
const answerLimit = 5 * time.Second

// @POD@ stands for NAMESPACE/POD.
func requests() []request {
	var out []request
	add := func(user, method string, paths ...string) {
		for _, path := range paths {
			out = append(out, request{user, method, path})
		}
	}
	everyPath := []string{
		"/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop", "/healthz/none", "/pods", "/pods/", "/runningpods/", "/runningpods",
		"/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/metrics/slis", "/metrics/none", "/stats", "/stats/", "/stats/summary",
		"/stats/summary?only_cpu_and_memory=true", "/stats/container", "/spec", "/spec/", "/configz", "/statusz", "/flagz", "/logs", "/logs/none",
		"/logs/?query=containerd", "/debug/pprof/cmdline", "/debug/flags/v", "/checkpoint", "/checkpoint/@POD@/main", "/none", "/",
		"/containerLogs/@POD@/main", "/containerLogs/@POD@/none", "/containerLogs/none/none/none", "/containerLogs/@POD@", "/containerLogs",
		"/exec/@POD@/main", "/exec/@POD@/main?command=true&output=1", "/exec/@POD@/none?command=true&output=1", "/exec/none/none/none?command=true&output=1",
		"/exec/@POD@/ended?command=true&output=1", "/attach/@POD@/ended?output=1", "/attach/none/none/none?output=1",
		"/attach/@POD@/main", "/attach/@POD@/none?output=1", "/portForward/@POD@", "/portForward/none/none", "/run/@POD@/main", "/run/@POD@/main?cmd=echo%20hi",
	}
	add(kube.AdminUser, http.MethodGet, everyPath...)
	add(nobody, http.MethodGet, "/healthz", "/pods", "/none", "/containerLogs/@POD@/main", "/exec/@POD@/main?command=true&output=1", "/stats/summary", "/configz", "/metrics", "/logs/")
	add("", http.MethodGet, "/healthz", "/pods", "/none")
	add(kube.AdminUser, http.MethodPost, "/pods", "/healthz", "/stats/summary", "/metrics", "/configz", "/containerLogs/@POD@/main", "/run/@POD@/main?cmd=echo%20hi",
		"/run/@POD@/none?cmd=true", "/run/@POD@/main", "/run/@POD@/main?cmd=false", "/run/@POD@/ended?cmd=true", "/exec/@POD@/main?command=true&output=1", "/attach/@POD@/main?output=1",
		"/portForward/@POD@", "/checkpoint/@POD@/none", "/none")
	add(kube.AdminUser, http.MethodDelete, "/pods", "/none")
	add(kube.AdminUser, http.MethodHead, "/healthz", "/pods", "/metrics/resource", "/containerLogs/@POD@/main")
	for _, query := range []string{
		"tailLines=1", "tailLines=0", "tailLines=-1", "tailLines=x", "limitBytes=3", "limitBytes=0", "limitBytes=-1", "sinceSeconds=3600", "sinceSeconds=0",
		"sinceSeconds=-1", "sinceTime=2020-01-01T00:00:00Z", "sinceTime=yesterday", "sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z", "timestamps=true", "timestamps=x", "previous=true",
		"follow=x", "stream=Stdout", "stream=Stderr", "stream=All", "stream=none", "stream=Stdout&tailLines=1", "unknown=1",
	} {
		add(kube.AdminUser, http.MethodGet, "/containerLogs/@POD@/main?"+query)
	}
	add(kube.AdminUser, http.MethodGet, "/containerLogs/@POD@/ended", "/containerLogs/@POD@/again?previous=true", "/containerLogs/@POD@/ended?follow=true")
	return out
}

// do sends a request and adds the answer: its status, its headers and its body.
func (s *Subject) request(ctx context.Context, r request) error {
	ctx, cancel := context.WithTimeout(ctx, daemon.Scaled(answerLimit))
	defer cancel()
	path := strings.ReplaceAll(r.path, "@POD@", s.Name+"/"+s.Case.Name)
	req, err := http.NewRequestWithContext(ctx, r.method, fmt.Sprintf("https://127.0.0.1:%d%s", s.Port, path), http.NoBody)
	if err != nil {
		return err
	}
	client, err := s.client(r.user)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("api/%s %s %s", r.user, r.method, r.path)
	names := s.own()
	s.Trace.Add(key+"/status", resp.Status)
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	s.Trace.Add(key+"/type", kind)
	for name := range resp.Header {
		if name != "Date" && name != "Content-Length" && name != "Content-Type" {
			s.Trace.Add(key+"/header/"+name, names.Replace(resp.Header.Get(name)))
		}
	}
	switch {
	case r.path == "/metrics" || strings.HasPrefix(r.path, "/debug") || r.path == "/logs" || r.path == "/":
		// What the agent says of itself is its own.
	case strings.HasPrefix(r.path, "/metrics/") && resp.StatusCode == http.StatusOK:
		for name := range series(string(body)) {
			s.Trace.Add(key+"/series/"+names.Replace(name), "there")
		}
	case kind == "application/json":
		return s.addFields(key, body, names)
	case resp.StatusCode >= http.StatusBadRequest:
		s.Trace.Add(key+"/error", names.Replace(string(body)))
	default:
		s.Trace.Add(key+"/body", names.Replace(string(body)))
	}
	return nil
}

// client is a client with the certificate of a user of the cluster, or without one.
func (s *Subject) client(user string) (*http.Client, error) {
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} //nolint:gosec // the certificate is the agent's own
	if user != "" {
		known, err := s.Cluster.Kube.ConfigFor(user)
		if err != nil {
			return nil, err
		}
		own, err := rest.TLSConfigFor(known)
		if err != nil {
			return nil, err
		}
		config.Certificates, config.GetClientCertificate = own.Certificates, own.GetClientCertificate
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}, CheckRedirect: noRedirect}, nil
}

var indexes = regexp.MustCompile(`\[\d+\]`)

// addFields adds the fields of an answer, without values and without the elements of lists.
func (s *Subject) addFields(key string, body []byte, names Names) error {
	values, err := Flatten("", rawJSON(body))
	if err != nil {
		return fmt.Errorf("%s: %w: %.200s", key, err, body)
	}
	for path := range values {
		if !strings.HasSuffix(path, "]") {
			s.Trace.Add(key+"/field"+indexes.ReplaceAllString(names.Replace(path), "[]"), "there")
		}
	}
	return nil
}

var labels = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// series are the names of the series of a page of metrics with the names of their labels, and their help.
func series(page string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || line == "" {
			out[line] = true
			continue
		}
		name, rest, found := strings.Cut(line, "{")
		if !found {
			name, _, _ = strings.Cut(line, " ")
			out[name] = true
			continue
		}
		var keys []string
		for _, m := range labels.FindAllStringSubmatch(rest, -1) {
			keys = append(keys, m[1])
		}
		out[name+"{"+strings.Join(keys, ",")+"}"] = true
	}
	delete(out, "")
	return out
}

// Requests sends every request to the agent's API.
func requestAll() Step {
	return Step{Name: "requests", Do: func(ctx context.Context, s *Subject) error {
		for _, r := range requests() {
			if err := s.request(ctx, r); err != nil {
				s.Trace.Add(fmt.Sprintf("api/%s %s %s/error", r.user, r.method, r.path), s.own().Replace(err.Error()))
			}
		}
		return nil
	}}
}

// readNode adds the Node as the API server has it.
func readNode() Step {
	return Step{Name: "node", Do: func(ctx context.Context, s *Subject) error {
		node, err := s.API.CoreV1().Nodes().Get(ctx, s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.ManagedFields, node.ResourceVersion, node.Status.Images = nil, "", nil
		data, err := json.Marshal(node)
		if err != nil {
			return err
		}
		values, err := Flatten("node", rawJSON(data))
		if err != nil {
			return err
		}
		for path, value := range values {
			s.Trace.Add(s.own().Replace(path), s.own().Replace(value))
		}
		return nil
	}}
}

// apiCases are about the node itself and about the port of the kubelet's API.
func apiCases() []Case {
	return []Case{{
		Name: "api",
		Spec: `
restartPolicy: OnFailure
containers:
- {name: main, command: [sh, -c, "echo out; sleep 1; echo err >&2; sleep 1; echo last; trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"]}
- {name: ended, command: [sh, -c, "echo bye"]}
- {name: again, command: [sh, -c, "test -e /marks/1 && exec sleep 3600; touch /marks/1; echo first; exit 1"], volumeMounts: [{name: marks, mountPath: /marks}]}
volumes: [{name: marks, emptyDir: {}}]
`,
		Steps: []Step{Logged("main", "last"), Terminated("ended"), Restarted("again", 1), requestAll(), readNode()},
	}}
}
