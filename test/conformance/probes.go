package conformance

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// probeRows are about startup, readiness and liveness probes, and about readiness gates.
func probeRows() []row {
	return append(handlerRows(), append(lifeRows(), gateRow())...)
}

// handlerRows are about what a probe does.
func handlerRows() []row {
	return []row{
		{
			name: "probe-exec",
			spec: `
containers:
- name: main
  env: [{name: READY, value: /tmp/ready}]
  readinessProbe: {exec: {command: [cat, $(READY)]}, periodSeconds: 1, failureThreshold: 2}
`,
			check: func(p *pod) {
				p.unready("main")
				p.event("Unhealthy", "Readiness probe failed: cat: can't open '/tmp/ready': No such file or directory")
				p.exec("main", "touch /tmp/ready")
				p.running()
				p.exec("main", "rm /tmp/ready")
				p.unready("main")
				if s := containerStatus(&p.get().Status, "main"); s.RestartCount != 0 || !ptr.Deref(s.Started, false) {
					p.Errorf("container = %+v, want started, with no restart", s)
				}
			},
		},
		{
			name: "probe-exec-timeout",
			spec: `containers: [{name: main, readinessProbe: {exec: {command: [sleep, "30"]}, periodSeconds: 1, timeoutSeconds: 1}}]`,
			check: func(p *pod) {
				p.event("Unhealthy", `Readiness probe failed: command timed out: "sleep 30" timed out after 1s`)
				p.unready("main")
			},
		},
		{
			name: "probe-http",
			spec: `
containers:
- name: main
  command: [httpd, -f, -p, "8081", -h, /tmp]
  ports: [{name: web, containerPort: 8081}]
  readinessProbe: {httpGet: {port: web, path: /well}, periodSeconds: 1, failureThreshold: 1}
`,
			check: func(p *pod) {
				p.event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 404")
				p.unready("main")
				p.exec("main", "echo well >/tmp/well")
				p.running()
			},
		},
		{
			name: "probe-tcp",
			spec: `
containers:
- name: main
  command: [sh, -c, "trap 'exit 0' TERM; while [ ! -e /tmp/open ]; do sleep 0.2; done; httpd -f -p 8082 & wait"]
  readinessProbe: {tcpSocket: {port: 8082}, periodSeconds: 1}
`,
			check: func(p *pod) {
				p.event("Unhealthy", ":8082: connect: connection refused")
				p.exec("main", "touch /tmp/open")
				p.running()
			},
		},
		{
			name:  "probe-http-details",
			spec:  `containers: [{name: main}]`,
			check: probeHTTPDetails,
		},
		{
			name:  "probe-grpc",
			spec:  `containers: [{name: main}]`,
			check: probeGRPC,
		},
	}
}

// unready waits until a container runs and is not ready, and the pod's conditions say so.
func (p *pod) unready(container string) *v1.Pod {
	p.Helper()
	return p.status("it is not ready", func(s *v1.PodStatus) error {
		c, ready, all := containerStatus(s, container), condition(s, v1.PodReady), condition(s, v1.ContainersReady)
		if c == nil || c.State.Running == nil || c.Ready || ready == nil || all == nil {
			return fmt.Errorf("containers %s", states(s))
		}
		want := fmt.Sprintf("containers with unready status: [%s]", container)
		for _, c := range []*v1.PodCondition{ready, all} {
			if c.Status != v1.ConditionFalse || c.Reason != "ContainersNotReady" || c.Message != want {
				return fmt.Errorf("%s: %+v", c.Type, c)
			}
		}
		return nil
	})
}

// onHost makes a pod on the host's network that is probed where the test listens.
func (p *pod) onHost(suffix string, probe v1.ProbeHandler) *pod {
	p.Helper()
	return p.node.create(p.T, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name + "-" + suffix}, Spec: v1.PodSpec{
		HostNetwork: true,
		Containers: []v1.Container{
			{Name: "main", ReadinessProbe: &v1.Probe{ProbeHandler: probe, PeriodSeconds: 1, FailureThreshold: 1}},
		},
	}})
}

// listen listens on all of the machine's addresses, and returns the port.
func (p *pod) listen() (net.Listener, int) {
	p.Helper()
	l, err := net.Listen("tcp", ":0")
	env.Must(p, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	env.Must(p, err)
	n, err := strconv.Atoi(port)
	env.Must(p, err)
	return l, n
}

// probeHTTPDetails: what a server sees of a probe, and what is made of redirects and of certificates.
func probeHTTPDetails(p *pod) {
	var wrong atomic.Value
	pages := http.NewServeMux()
	pages.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/headers?a=b", http.StatusFound)
	})
	pages.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
	})
	pages.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "me.example" && r.URL.RawQuery == "" || r.Header.Get("X-Own") != "yes" ||
			len(r.UserAgent()) < 12 || r.UserAgent()[:11] != "kube-probe/" {
			wrong.Store(fmt.Sprint(r.Host, r.Header))
			w.WriteHeader(http.StatusTeapot)
		}
	})
	plain, secret := httptest.NewUnstartedServer(pages), httptest.NewUnstartedServer(pages)
	env.Must(p, plain.Listener.Close())
	env.Must(p, secret.Listener.Close())
	var plainPort, secretPort int
	plain.Listener, plainPort = p.listen()
	secret.Listener, secretPort = p.listen()
	plain.Start()
	secret.StartTLS()
	defer plain.Close()
	defer secret.Close()
	get := func(path string, port int, scheme v1.URIScheme) v1.ProbeHandler {
		return v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{
			Path:        path,
			Port:        intstr.FromInt32(int32(port)),
			Scheme:      scheme,
			HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "me.example"}, {Name: "X-Own", Value: "yes"}},
		}}
	}
	pods := []*pod{
		p.onHost("headers", get("/headers", plainPort, v1.URISchemeHTTP)),
		p.onHost("https", get("/headers", secretPort, v1.URISchemeHTTPS)),
		p.onHost("here", get("/here", plainPort, v1.URISchemeHTTP)),
		p.onHost("away", get("/away", plainPort, v1.URISchemeHTTP)),
	}
	for _, q := range pods {
		q.running()
	}
	pods[3].event("ProbeWarning", "Readiness probe warning: Probe terminated redirects")
	if w := wrong.Load(); w != nil {
		p.Errorf("wrong headers of a probe = %v, want none", w)
	}
	for _, q := range pods {
		q.delete()
	}
}

// probeGRPC: a probe asks for its service, and its answer changes.
func probeGRPC(p *pod) {
	l, port := p.listen()
	answers := health.NewServer()
	answers.SetServingStatus("mine", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, answers)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() {
		server.Stop()
		env.Must(p, <-done)
	}()
	q := p.onHost("host", v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(port), Service: ptr.To("mine")}})
	q.event("Unhealthy", `Readiness probe failed: service unhealthy (responded with "NOT_SERVING")`)
	q.unready("main")
	answers.SetServingStatus("mine", grpc_health_v1.HealthCheckResponse_SERVING)
	q.running()
	q.delete()
}

// lifeRows are about what follows from a probe.
func lifeRows() []row {
	return []row{
		{
			name: "probe-liveness",
			spec: `
terminationGracePeriodSeconds: 86400
containers:
- name: main
  command: [sh, -c, "trap '' TERM; touch /tmp/alive; while true; do sleep 1; done"]
  livenessProbe: {exec: {command: [test, -e, /tmp/alive]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 2, terminationGracePeriodSeconds: 1}
`,
			check: func(p *pod) {
				p.running()
				p.exec("main", "rm /tmp/alive")
				got := p.status("it was started again", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "main"); c.RestartCount != 1 || c.State.Running == nil {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
				if end := containerStatus(&got.Status, "main").LastTerminationState.Terminated; end == nil ||
					end.ExitCode != 137 {
					p.Errorf("last state = %+v, want exit code 137, after the probe's grace", end)
				}
				p.event("Killing", "Container main failed liveness probe, will be restarted")
				p.event("Unhealthy", "Liveness probe failed: ")
				p.deleteNow()
			},
		},
		{
			name: "probe-liveness-never",
			spec: `
restartPolicy: Never
terminationGracePeriodSeconds: 60
containers:
- {name: main, command: [sh, -c, "trap 'exit 3' TERM; while true; do sleep 0.1; done"], livenessProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 1}}
`,
			check: func(p *pod) {
				got := p.phase(v1.PodFailed)
				if end := containerStatus(&got.Status, "main").State.Terminated; end == nil || end.ExitCode != 3 ||
					end.Reason != "Error" {
					p.Errorf("container ended with %+v, want Error, exit code 3", end)
				}
				p.event("Killing", "Container main failed liveness probe")
			},
		},
		{
			name: "probe-startup",
			spec: `
containers:
- name: main
  startupProbe: {exec: {command: [test, -e, /tmp/begun]}, periodSeconds: 1, failureThreshold: 100}
  livenessProbe: {exec: {command: [test, -e, /tmp/begun]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 1}
  readinessProbe: {exec: {command: [sh, -c, "echo x >>/tmp/asked; test -e /tmp/begun"]}, periodSeconds: 1}
`,
			check: func(p *pod) {
				p.event("Unhealthy", "Startup probe failed: ")
				got := p.unready("main")
				if c := containerStatus(&got.Status, "main"); ptr.Deref(c.Started, true) {
					p.Errorf("container = %+v, want started false", c)
				}
				p.says("main", "test -e /tmp/asked || echo not asked", "not asked")
				p.exec("main", "touch /tmp/begun")
				got = p.running()
				if c := containerStatus(&got.Status, "main"); !ptr.Deref(c.Started, false) || c.RestartCount != 0 {
					p.Errorf("container = %+v, want started, with no restart", c)
				}
			},
		},
		{
			name: "probe-startup-fails",
			spec: `
containers:
- {name: main, startupProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 2}}
`,
			check: func(p *pod) {
				p.event("Killing", "Container main failed startup probe, will be restarted")
				p.status("it was started again", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "main"); c.RestartCount < 1 {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
			},
		},
		{
			name: "probe-sidecar",
			spec: `
initContainers:
- name: side
  restartPolicy: Always
  startupProbe: {exec: {command: [test, -e, /tmp/begun]}, periodSeconds: 1, failureThreshold: 100}
  readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
  livenessProbe: {exec: {command: [test, "!", -e, /tmp/dead]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 1}
containers: [{name: main}]
`,
			check: func(p *pod) {
				p.status("the sidecar runs and has not started", func(s *v1.PodStatus) error {
					side, main, c := containerStatus(s, "side"), containerStatus(s, "main"),
						condition(s, v1.PodInitialized)
					if side == nil || side.State.Running == nil || ptr.Deref(side.Started, true) || main == nil ||
						main.State.Waiting == nil || main.State.Waiting.Reason != "PodInitializing" {
						return fmt.Errorf("containers %s", states(s))
					}
					if c == nil || c.Status != v1.ConditionFalse || c.Reason != "ContainersNotInitialized" ||
						c.Message != "containers with incomplete status: [side]" {
						return fmt.Errorf("%+v", c)
					}
					return nil
				})
				p.exec("side", "touch /tmp/begun")
				p.unready("side")
				p.status("the container runs", func(s *v1.PodStatus) error {
					if c := containerStatus(s, "main"); c.State.Running == nil || !c.Ready {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
				p.exec("side", "touch /tmp/ready")
				p.running()
				p.exec("side", "touch /tmp/dead")
				p.event("Killing", "Init container side failed liveness probe")
			},
		},
		{
			name: "probe-timing",
			spec: `
containers:
- name: main
  readinessProbe: {exec: {command: [sh, -c, "echo x >>/tmp/asked"]}, initialDelaySeconds: 4, periodSeconds: 2, successThreshold: 3}
`,
			check: func(p *pod) {
				p.running()
				p.says("main", "test $(wc -l </tmp/asked) -ge 3 && echo enough", "enough")
			},
		},
	}
}

// gateRow: a pod is ready when others have said so.
func gateRow() row {
	return row{
		name: "readiness-gates",
		spec: `
readinessGates: [{conditionType: example.com/gate}]
containers: [{name: main}]
`,
		check: func(p *pod) {
			shut := func(message string) {
				p.Helper()
				p.status("the gate is shut", func(s *v1.PodStatus) error {
					ready, all := condition(s, v1.PodReady), condition(s, v1.ContainersReady)
					if all == nil || all.Status != v1.ConditionTrue || ready.Status != v1.ConditionFalse ||
						ready.Reason != "ReadinessGatesNotReady" || ready.Message != message {
						return fmt.Errorf("%+v, %+v", ready, all)
					}
					return nil
				})
			}
			set := func(status string) {
				p.patch(`status: {conditions: [{type: example.com/gate, status: "`+status+`"}]}`, "status")
			}
			shut(`corresponding condition of pod readiness gate "example.com/gate" does not exist.`)
			set("False")
			shut(`the status of pod readiness gate "example.com/gate" is not "True", but False`)
			set("True")
			got := p.running()
			if c := condition(&got.Status, "example.com/gate"); c == nil || c.Status != v1.ConditionTrue {
				p.Errorf("condition example.com/gate = %+v, want True", c)
			}
		},
	}
}

// deleteNow deletes the pod without the grace that it asks for, and waits until it is gone.
func (p *pod) deleteNow() {
	p.Helper()
	env.Must(p, p.node.api.CoreV1().Pods(p.node.name).Delete(p.Context(), p.name,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}))
}
