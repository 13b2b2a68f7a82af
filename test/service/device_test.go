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
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/pods/shutdown/logindtest"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const nodeName = "edge1"

var built = programs.Flags()

var manifests = flag.String("manifests", filepath.Join("..", "..", "deploy", "cloudcore"),
	"the folder of cloudcore's manifests")

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// device is a node of a cluster, whose systemd and logind are played.
type device struct {
	*env.Node
	cluster *env.Cluster
	logind  *logindtest.Logind
	told    *notices
}

func startDevice(t *testing.T) *device {
	t.Helper()
	d := &device{
		cluster: env.StartCluster(t, built, env.ClusterOptions{Manifests: *manifests}),
		logind:  logindtest.Start(t, time.Hour),
		told:    listen(t),
	}
	d.Node = d.cluster.StartNode(t, nodeName, env.NodeOptions{Agent: agent.Options{
		Kubelet: map[string]any{
			"nodeStatusUpdateFrequency": "1s",
			"containerLogMaxSize":       "1Mi", "containerLogMaxFiles": 3, "containerLogMonitorInterval": "3s",
			"shutdownGracePeriod": "60s", "shutdownGracePeriodCriticalPods": "30s",
		},
		Env: []string{"DBUS_SYSTEM_BUS_ADDRESS=" + d.logind.Address, "NOTIFY_SOCKET=" + d.told.socket,
			"WATCHDOG_USEC=3000000"},
	}})
	t.Cleanup(func() {
		data, err := os.ReadFile(d.Log())
		env.Must(t, err)
		if strings.Contains(string(data), "is stuck") {
			t.Errorf("%s contains \"is stuck\", want it not to:\n%s", d.Log(), data)
		}
	})
	return d
}

// with returns the same device for a subtest.
func (d *device) with(t *testing.T) *device {
	sub := *d
	sub.Node, sub.cluster = d.Node.With(t), d.cluster.With(t)
	return &sub
}

// static writes a manifest of one container that runs a shell script.
func (d *device) static(name, script string, spec ...string) {
	d.T.Helper()
	manifest := env.Pod(name, script, spec...)
	d.Manifest(name, strings.Replace(manifest, "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 10",
		1))
}

// forever is a script that says when it is told to end, and ends.
const forever = "trap 'echo told; exit 0' TERM; echo begins; while true; do sleep 1 & wait; done"

// shown returns the API server's pod.
func (d *device) shown(name string) (*v1.Pod, error) {
	return d.cluster.API.CoreV1().Pods("default").Get(d.T.Context(), name, metav1.GetOptions{})
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
	env.Must(t, err)
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
		env.Must(t, conn.Close())
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

// sync waits until everything that was told before the call has been read.
func (n *notices) sync(t testing.TB) {
	t.Helper()
	const mark = "MARK=1"
	before := n.count(mark)
	conn, err := net.Dial("unixgram", n.socket)
	env.Must(t, err)
	defer func() { env.Must(t, conn.Close()) }()
	_, err = conn.Write([]byte(mark))
	env.Must(t, err)
	n.until(t, mark, before+1) // the socket keeps the order
}

// until waits until something was told so often.
func (n *notices) until(t testing.TB, what string, times int) {
	t.Helper()
	wait.Until(t, "the service manager to be told "+what, func() error {
		if got := n.count(what); got < times {
			return fmt.Errorf("it was told %d times, want %d", got, times)
		}
		return nil
	})
}
