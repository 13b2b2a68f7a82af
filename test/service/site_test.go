// Package service shows edgecore as the service of a device that nobody looks after: that it bounds logs, tells the
// service manager how it is, ends the pods in good order when the device is shut down, and shows static pods in the
// cloud. The parts are real (kube-apiserver, cloudcore, containerd, a D-Bus daemon); logind and systemd are played.
package service

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/shutdown/logindtest"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

// patience bounds every wait: these machines are shared.
const patience = 2 * time.Minute

const nodeName = "edge1"

var built = programs.Flags()

var manifests = flag.String("manifests", filepath.Join("..", "..", "deploy", "cloudcore"), "the folder of cloudcore's manifests")

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// site is a cluster with one node, whose systemd and logind are played.
type site struct {
	*agent.Agent
	t      *testing.T
	kube   *kube.Cluster
	api    kubernetes.Interface
	cloud  *cloud.Cloud
	cri    *cri.Client
	logind *logindtest.Logind
	told   *notices
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, kube: kube.Start(t, kube.Options{}), logind: logindtest.Start(t, time.Hour), told: listen(t)}
	s.api = s.kube.Client()
	s.cloud = cloud.Install(t, s.kube, cloud.InstallOptions{Binary: built.Cloud, Manifests: *manifests})
	port, err := daemon.FreePort()
	must(t, err)
	ctrd := testenv.StartContainerd(t, testenv.Options{})
	s.Agent = testenv.StartAgent(t, ctrd, agent.Options{
		Binary: built.Edge, NodeName: nodeName,
		EdgeHub: s.cloud.EdgeHub(t),
		Kubelet: map[string]any{
			"port": port, "nodeStatusUpdateFrequency": "5s", "containerLogMaxSize": "1Mi", "containerLogMaxFiles": 3, "containerLogMonitorInterval": "3s",
			"shutdownGracePeriod": "60s", "shutdownGracePeriodCriticalPods": "30s",
		},
		Env: []string{"DBUS_SYSTEM_BUS_ADDRESS=" + s.logind.Address, "NOTIFY_SOCKET=" + s.told.socket, "WATCHDOG_USEC=3000000"},
	})
	t.Cleanup(func() {
		data, err := os.ReadFile(s.Log())
		must(t, err)
		for _, bad := range []string{"DATA RACE", "panic", "goroutine 1 [", "is stuck"} {
			if strings.Contains(string(data), bad) {
				t.Errorf("the agent's log has %q", bad)
			}
		}
	})
	s.cri = testenv.Dial(t, ctrd)
	// Without a controller manager nobody makes it.
	must(t, s.kube.Apply(t.Context(), "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: default}\n"))
	s.until("the node is Ready", func() error { return s.ready(v1.ConditionTrue, "") })
	return s
}

// ready checks the node's condition as the cloud has it.
func (s *site) ready(status v1.ConditionStatus, message string) error {
	node, err := s.api.CoreV1().Nodes().Get(s.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status == status && strings.Contains(c.Message, message) {
			return nil
		}
	}
	return fmt.Errorf("want Ready %s %q: %+v", status, message, node.Status.Conditions)
}

// static writes a manifest of one container that runs a shell script.
func (s *site) static(name, script string, spec ...string) {
	s.t.Helper()
	must(s.t, s.WriteManifest(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 10
%s
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, %q]
`, name, strings.Join(spec, "\n"), script)))
}

// forever is a script that says when it is told to end, and ends.
const forever = "trap 'echo told; exit 0' TERM; echo begins; while true; do sleep 1 & wait; done"

// running waits until pods of the node are ready, and returns them.
func (s *site) running(names ...string) map[string]*v1.Pod {
	s.t.Helper()
	var pods map[string]*v1.Pod
	s.until("pods are ready", func() (err error) {
		if pods, err = s.Pods(s.t.Context()); err != nil {
			return err
		}
		for _, name := range names {
			if !isReady(pods[name]) {
				return fmt.Errorf("pod %s is not ready: %+v", name, pods[name])
			}
		}
		return nil
	})
	return pods
}

func isReady(p *v1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

// shown returns what the cloud has of a pod.
func (s *site) shown(name string) (*v1.Pod, error) {
	return s.api.CoreV1().Pods("default").Get(s.t.Context(), name, metav1.GetOptions{})
}

// containers are the runtime's ids of a pod's containers that run.
func (s *site) containers(pod string) []string {
	s.t.Helper()
	list, err := s.cri.ListContainers(s.t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": pod},
	}})
	must(s.t, err)
	var ids []string
	for _, c := range list.Containers {
		ids = append(ids, c.Id)
	}
	return ids
}

// until waits until a check is content.
func (s *site) until(what string, check func() error) {
	s.t.Helper()
	testenv.Poll(s.t, patience, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// notices are what a service manager was told.
type notices struct {
	socket string
	mu     sync.Mutex
	heard  []string
}

func listen(t *testing.T) *notices {
	t.Helper()
	n := &notices{socket: filepath.Join(t.TempDir(), "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 4096)
		for {
			size, err := conn.Read(buffer)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.heard = append(n.heard, strings.Split(string(buffer[:size]), "\n")...)
			n.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		must(t, conn.Close())
		<-ended
	})
	return n
}

// count is how often something was told.
func (n *notices) count(what string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	times := 0
	for _, h := range n.heard {
		if h == what {
			times++
		}
	}
	return times
}
