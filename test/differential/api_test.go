package differential

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// nobody is a user with a certificate of the cluster and no rights.
const nobody = "nobody"

// readOnly is the user of requests to the read-only port.
const readOnly = "read-only"

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
		"/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop", "/healthz/none", "/pods", "/pods/",
		"/runningpods/", "/runningpods",
		"/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/metrics/slis", "/metrics/none",
		"/stats", "/stats/", "/stats/summary",
		"/stats/summary?only_cpu_and_memory=true", "/stats/container", "/spec", "/spec/", "/configz", "/statusz",
		"/flagz", "/logs", "/logs/none",
		"/logs/?query=containerd", "/debug/pprof/cmdline", "/debug/flags/v", "/checkpoint", "/checkpoint/@POD@/main",
		"/none", "/",
		"/containerLogs/@POD@/main", "/containerLogs/@POD@/none", "/containerLogs/none/none/none",
		"/containerLogs/@POD@", "/containerLogs",
		"/exec/@POD@/main", "/exec/@POD@/main?command=true&output=1", "/exec/@POD@/none?command=true&output=1",
		"/exec/none/none/none?command=true&output=1",
		"/exec/@POD@/ended?command=true&output=1", "/attach/@POD@/ended?output=1", "/attach/none/none/none?output=1",
		"/attach/@POD@/main", "/attach/@POD@/none?output=1", "/portForward/@POD@", "/portForward/none/none",
		"/run/@POD@/main", "/run/@POD@/main?cmd=echo%20hi",
	}
	add(kube.AdminUser, http.MethodGet, everyPath...)
	add(nobody, http.MethodGet, "/healthz", "/pods", "/none", "/containerLogs/@POD@/main",
		"/exec/@POD@/main?command=true&output=1", "/stats/summary", "/configz", "/metrics", "/logs/")
	add("", http.MethodGet, "/healthz", "/pods", "/none")
	add(readOnly, http.MethodGet, everyPath...)
	add(kube.AdminUser, http.MethodPost, "/pods", "/healthz", "/stats/summary", "/metrics", "/configz",
		"/containerLogs/@POD@/main", "/run/@POD@/main?cmd=echo%20hi",
		"/run/@POD@/none?cmd=true", "/run/@POD@/main", "/run/@POD@/main?cmd=false", "/run/@POD@/ended?cmd=true",
		"/exec/@POD@/main?command=true&output=1", "/attach/@POD@/main?output=1",
		"/portForward/@POD@", "/checkpoint/@POD@/none", "/none")
	add(kube.AdminUser, http.MethodDelete, "/pods", "/none", "/metrics/slis")
	add(kube.AdminUser, http.MethodHead, "/healthz", "/pods", "/metrics/resource", "/containerLogs/@POD@/main")
	for _, query := range []string{
		"tailLines=1", "tailLines=0", "tailLines=-1", "tailLines=x", "limitBytes=3", "limitBytes=0", "limitBytes=-1",
		"sinceSeconds=3600", "sinceSeconds=0",
		"sinceSeconds=-1", "sinceTime=2020-01-01T00:00:00Z", "sinceTime=yesterday",
		"sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z", "timestamps=true", "timestamps=x", "previous=true",
		"follow=x", "stream=Stdout", "stream=Stderr", "stream=All", "stream=none", "stream=Stdout&tailLines=1",
		"unknown=1",
	} {
		add(kube.AdminUser, http.MethodGet, "/containerLogs/@POD@/main?"+query)
	}
	add(kube.AdminUser, http.MethodGet, "/containerLogs/@POD@/ended", "/containerLogs/@POD@/again?previous=true",
		"/containerLogs/@POD@/ended?follow=true")
	return out
}

// ask sends a request and returns the answer.
func (s *Subject) ask(ctx context.Context, r request) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, daemon.Scaled(answerLimit))
	defer cancel()
	path := strings.ReplaceAll(r.path, "@POD@", s.Name+"/"+s.Case.Name)
	url := fmt.Sprintf("https://127.0.0.1:%d%s", s.Port, path)
	if r.user == readOnly {
		url = fmt.Sprintf("http://127.0.0.1:%d%s", s.ReadOnlyPort, path)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, url, http.NoBody)
	if err != nil {
		return Answer{}, err
	}
	client, err := s.client(r.user)
	if err != nil {
		return Answer{}, err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return Answer{Status: resp.Status, Header: resp.Header, Body: body}, err
}

// answer is ask, again while the agent puts no more questions to the cluster's authorizer: docs/differences.md has a
// row for it.
func (s *Subject) answer(ctx context.Context, r request) (a Answer, err error) {
	err = daemon.PollEvery(ctx, 200*time.Millisecond, func() error {
		if a, err = s.ask(ctx, r); err != nil {
			return daemon.Fatal(err)
		}
		if a.Status == "503 Service Unavailable" &&
			bytes.Contains(a.Body, []byte("too many questions wait for the cloud")) {
			return errors.New("the agent asks the cluster no more questions for a moment")
		}
		return nil
	})
	return a, err
}

// client is a client with the certificate of a user of the cluster, or without one.
func (s *Subject) client(user string) (*http.Client, error) {
	config := &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12,
	} //nolint:gosec // the certificate is the agent's own
	if user != "" && user != readOnly {
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

// send sends requests to the ports of the agent. change changes the answers, to plant a difference; nil does not.
func send(list []request, change func(request, *Answer)) Step {
	return Step{Name: "requests", Do: func(ctx context.Context, s *Subject) error {
		for _, r := range list {
			key := fmt.Sprintf("api/%s %s %s", r.user, r.method, r.path)
			a, err := s.answer(ctx, r)
			if err == nil {
				if change != nil {
					change(r, &a)
				}
				err = s.Trace.addAnswer(key, r.path, a, s.own())
			}
			if err != nil {
				s.Trace.Add(key+"/error", s.own().Replace(err.Error()))
			}
		}
		return nil
	}}
}

// readNode adds the Node as the API server has it. change changes it, to plant a difference; nil does not.
func readNode(change func(*v1.Node)) Step {
	return Step{Name: "node", Do: func(ctx context.Context, s *Subject) error {
		node, err := s.API.CoreV1().Nodes().Get(ctx, s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if change != nil {
			change(node)
		}
		if node.Status.DaemonEndpoints.KubeletEndpoint.Port == int32(s.Port) {
			node.Status.DaemonEndpoints.KubeletEndpoint.Port = 0 // each has its own on this machine
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

// measured waits until the agent tells what the pod uses: the kubelet measures at times of its own.
func measured() Step {
	return Step{Name: "measured", Do: func(ctx context.Context, s *Subject) error {
		return daemon.PollEvery(ctx, 500*time.Millisecond, func() error {
			a, err := s.ask(ctx, request{kube.AdminUser, http.MethodGet, "/stats/summary"})
			if err != nil {
				return err
			}
			var got statsapi.Summary
			if err := json.Unmarshal(a.Body, &got); err != nil {
				return err
			}
			i := slices.IndexFunc(got.Pods, func(p statsapi.PodStats) bool { return p.PodRef.UID == string(s.Pod.UID) })
			if i < 0 {
				return errors.New("the pod is not in the summary")
			}
			if got.Node.Runtime == nil || got.Node.Runtime.ImageFs == nil ||
				ptr.Deref(got.Node.Runtime.ImageFs.UsedBytes, 0) == 0 {
				return errors.New("the images are not measured")
			}
			return complete(&got.Pods[i])
		})
	}}
}

// complete returns an error while parts of a pod's summary are missing.
func complete(p *statsapi.PodStats) error {
	switch {
	case p.CPU == nil || ptr.Deref(p.CPU.UsageCoreNanoSeconds, 0) == 0:
		return errors.New("the CPU time is not known")
	case p.Memory == nil || ptr.Deref(p.Memory.WorkingSetBytes, 0) == 0:
		return errors.New("the memory is not known")
	case p.Network == nil || p.EphemeralStorage == nil || p.ProcessStats == nil:
		return errors.New("the network, the storage or the processes are not known")
	case len(p.VolumeStats) < 2:
		return fmt.Errorf("%d volumes are known, want 2", len(p.VolumeStats))
	}
	return nil
}

// readCSINode adds whether there is a CSINode of the node.
func readCSINode() Step {
	return Step{Name: "csinode", Do: func(ctx context.Context, s *Subject) error {
		_, err := s.API.StorageV1().CSINodes().Get(ctx, s.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			s.Trace.Add("csinode", there)
		case !apierrors.IsNotFound(err):
			return err
		}
		return nil
	}}
}

// cordon makes the node unschedulable and schedulable again, and adds the events that tell of it. Those that do not
// come until events have settled never do.
func cordon() Step {
	return Step{
		Name: "cordon", Do: func(ctx context.Context, s *Subject) error {
			for _, unschedulable := range []bool{true, false} {
				patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, unschedulable)
				if _, err := s.API.CoreV1().Nodes().Patch(ctx, s.Name, types.MergePatchType, []byte(patch),
					metav1.PatchOptions{}); err != nil {
					return err
				}
				want := map[bool]string{true: "NodeNotSchedulable", false: "NodeSchedulable"}[unschedulable]
				within, cancel := context.WithTimeout(ctx, daemon.Scaled(eventsSettle))
				err := daemon.PollEvery(within, 200*time.Millisecond, func() error { return s.nodeEvent(ctx, want) })
				cancel()
				if err == nil {
					s.Trace.Add("node/events/"+want, there)
				}
			}
			return nil
		},
	}
}

// nodeEvent returns an error while there is no event of the node with a reason.
func (s *Subject) nodeEvent(ctx context.Context, reason string) error {
	list, err := s.API.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + s.Name + ",reason=" + reason,
	})
	if err == nil && len(list.Items) == 0 {
		err = fmt.Errorf("no event %s", reason)
	}
	return err
}

// apiCases are about the node itself and about the port of the kubelet's API. What becomes of their pods is for others
// to compare.
func apiCases() []Case {
	return []Case{
		{
			Name:   "api",
			Ignore: []string{`pod\..*`, `events/.*`, `cri/.*`, `logs/.*`},
			Spec: `
restartPolicy: OnFailure
containers:
- name: main
  command: [sh, -c, "echo out; sleep 1; echo err >&2; sleep 1; echo last; trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"]
  resources: {limits: {cpu: 500m, memory: 64Mi}}
- {name: ended, command: [sh, -c, "echo bye"]}
- {name: again, command: [sh, -c, "test -e /marks/1 && exec sleep 3600; touch /marks/1; echo first; sleep 1; exit 1"], volumeMounts: [{name: marks, mountPath: /marks}]}
volumes: [{name: marks, emptyDir: {}}]
`,
			Steps: []Step{
				Logged("main", "last"), Terminated("ended"), Restarted("again", 1), measured(), send(requests(), nil),
				readNode(nil), readCSINode(), cordon(),
			},
		},
	}
}
