package differential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/crirecord"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubeedge"
	"github.com/edgecore-io/edgecore/test/testenv/kubelet"
)

// program is an agent's process.
type program interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Kill9(ctx context.Context) error
}

// Side is one of the two nodes.
type Side struct {
	// Name is the node's name, and that of the namespace of its pods.
	Name string
	// Kind is "kubelet", "edgecore" or "kubeedge".
	Kind       string
	Agent      program
	API        kubernetes.Interface
	Cluster    *env.Cluster
	Containerd *containerd.Instance
	CRI        *cri.Client
	Calls      *crirecord.Recorder
	// Root is the agent's root folder, Logs that of the logs of pods, LogFile the agent's own.
	Root, Logs, LogFile string
	// Dir is a folder that the volumes of pods may use.
	Dir string
	// Port is that of the kubelet's API, ReadOnlyPort that of the part of it that needs no rights, both on 127.0.0.1.
	Port, ReadOnlyPort int

	history *history
	// texts are more placeholders of names, see Names.
	texts map[string]string
}

// configuration is what both agents are told.
func configuration(dir string) map[string]any {
	return map[string]any{
		"maxPods":                   500,
		"nodeStatusUpdateFrequency": "5s",
		"clusterDNS":                []string{"10.96.0.10"},
		"clusterDomain":             "cluster.local",
		"allowedUnsafeSysctls": []string{
			"net.core.somaxconn", "kernel.msg*",
			// Safe since Kubernetes 1.37; this kubelet is older.
			"net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat",
		},
		"serializeImagePulls":  false,
		"volumeStatsAggPeriod": "1s",
		"resolvConf":           filepath.Join(dir, "resolv.conf"),
	}
}

// resolvConf is what a node has of name servers: words that pods do not get are among it.
const resolvConf = "# comment\ndomain ignored.example\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch . " +
	"one.example two.example.\noptions ndots:2 timeout:1\n"

// credentials are the node's own for a registry that is not there.
const credentials = `{"auths": {"127.0.0.1:1": {"auth": "dXNlcjpwYXNzd29yZA=="}}}`

// StartSide starts a node with the agent that what names: "kubelet", "edgecore", "edgecore:PATH" or "kubeedge:VERSION".
// The node ends with the test. gates are feature gates of a kubelet.
func StartSide(t *testing.T, c *env.Cluster, what, name string, built string, gates map[string]bool) *Side {
	t.Helper()
	kind, binary, _ := strings.Cut(what, ":")
	ctrd := testenv.StartContainerd(t, testenv.Options{})
	dir, err := os.MkdirTemp("", "differential-") // t.TempDir is too long for the path of a socket
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "cri.sock")
	calls, err := crirecord.Start(socket, ctrd.Socket())
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, calls.Close()) })
	s := &Side{
		Name:       name,
		Kind:       kind,
		API:        c.API,
		Cluster:    c,
		Containerd: ctrd,
		CRI:        testenv.Dial(t, ctrd),
		Calls:      calls,
	}
	s.Dir = filepath.Join(dir, "host")
	env.Must(t, os.Mkdir(s.Dir, 0o755))
	env.Must(t, os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte(resolvConf), 0o644))
	env.Must(t, os.Mkdir(filepath.Join(dir, "root"), 0o750))
	env.Must(t, os.WriteFile(filepath.Join(dir, "root", "config.json"), []byte(credentials), 0o600))
	c.Namespace(name)
	switch kind {
	case "kubelet":
		s.startKubelet(t, binary, dir, "unix://"+socket, gates)
	case "edgecore":
		if binary == "" {
			binary = built
		}
		s.startEdgecore(t, binary, dir, "unix://"+socket)
	case "kubeedge":
		s.startKubeEdge(t, binary, dir, "unix://"+socket)
	default:
		t.Fatalf("agent %q: want kubelet, edgecore, edgecore:PATH or kubeedge:VERSION", what)
	}
	c.NodeUntil(name, "to be Ready", env.Ready)
	s.history, err = watch(t.Context(), c.API, name)
	env.Must(t, err)
	return s
}

func (s *Side) startKubelet(t *testing.T, binary, dir, endpoint string, gates map[string]bool) {
	t.Helper()
	var err error
	if binary == "" {
		binary, err = kubelet.Build(t.Context(), os.Stderr)
		env.Must(t, err)
	}
	config := configuration(dir)
	if len(gates) > 0 {
		config["featureGates"] = gates
	}
	k, err := kubelet.New(s.Cluster.Kube, kubelet.Options{
		Binary:     binary,
		Dir:        dir,
		NodeName:   s.Name,
		Endpoint:   endpoint,
		Containerd: s.Containerd.Socket(),
		CgroupRoot: s.Containerd.CgroupRoot(),
		Config:     config,
		Started:    s.started(dir),
	})
	env.Must(t, err)
	s.Agent, s.Root, s.Logs, s.LogFile, s.Port, s.ReadOnlyPort = k, k.Root(), k.PodLogs(), k.Log(), k.Port,
		k.ReadOnlyPort
	s.run(t, dir, k.RemoveLogLinks)
}

func (s *Side) startEdgecore(t *testing.T, binary, dir, endpoint string) {
	t.Helper()
	a, err := agent.New(agent.Options{
		Binary:     binary,
		Dir:        dir,
		NodeName:   s.Name,
		Endpoint:   endpoint,
		CgroupRoot: s.Containerd.CgroupRoot(),
		Kubelet:    configuration(dir),
		EdgeHub:    s.Cluster.Cloud.EdgeHub(t),
		Started:    s.started(dir),
	})
	env.Must(t, err)
	s.Agent, s.Root, s.Logs, s.LogFile, s.Port = a, filepath.Join(dir, "root"), a.PodLogs(), a.Log(), a.KubeletPort
	s.ReadOnlyPort = a.Port
	s.run(t, dir, a.RemoveLogLinks)
}

// startKubeEdge starts KubeEdge's edgecore of a version, which joins the same cloudcore as edgecore.
func (s *Side) startKubeEdge(t *testing.T, version, dir, endpoint string) {
	t.Helper()
	binary, _, err := kubeedge.Build(t.Context(), version, os.Stderr)
	env.Must(t, err)
	cloud := s.Cluster.Cloud
	token, err := cloud.Token(t.Context())
	env.Must(t, err)
	e, err := kubeedge.NewEdge(t.Context(), kubeedge.EdgeOptions{
		Binary:     binary,
		Dir:        filepath.Join(dir, "device"),
		NodeName:   s.Name,
		Endpoint:   endpoint,
		CgroupRoot: s.Containerd.CgroupRoot(),
		Link:       cloud.Link,
		Bootstrap:  cloud.Bootstrap,
		Token:      token,
	})
	env.Must(t, err)
	s.Agent, s.Root, s.Logs, s.LogFile = edge{e}, e.Path("var/lib/kubelet"), e.Path("var/log/pods"), e.Log()
	s.Port, s.ReadOnlyPort = e.Port, e.Port
	s.run(t, dir, func() error { return nil })
}

// edge is KubeEdge's edgecore as a program. [StartSide] waits until its node is ready.
type edge struct{ *kubeedge.Edge }

// Start implements program.
func (e edge) Start(context.Context) error { return e.Edge.Start() }

// started records each process of the agent with the cluster: a run that is killed leaves it to the next one to end it.
func (s *Side) started(dir string) func(daemon.Identity) error {
	return func(id daemon.Identity) error {
		return s.Cluster.Kube.Host(s.Name, kube.Guest{Process: id, Dir: dir})
	}
}

// run starts the agent, and stops it when the test ends.
func (s *Side) run(t *testing.T, dir string, removeLinks func() error) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := daemon.Within(context.Background())
		defer cancel()
		err := s.Agent.Stop(ctx)
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", s.Kind, daemon.Tail(s.LogFile, 20))
		}
		env.Must(t, errors.Join(err, agent.Unmount(dir), removeLinks()))
	})
	env.Must(t, s.Agent.Start(t.Context()))
}

// names are the placeholders for what is the node's own.
func (s *Side) names(more map[string]string) Names {
	texts := map[string]string{
		s.Name:                             "<node>",
		s.Root:                             "<root>",
		filepath.Dir(s.Root):               "<folder>",
		s.Dir:                              "<dir>",
		s.Logs:                             "<logs>",
		s.Containerd.CgroupRoot():          "<cgroup root>",
		s.Containerd.Root:                  "<runtime's root>",
		"/run/" + s.Containerd.Name:        "<runtime's run>",
		s.Containerd.Name:                  "<runtime>",
		fmt.Sprintf(":%d", s.Port):         ":<port>",
		fmt.Sprintf(":%d", s.ReadOnlyPort): ":<read-only port>",
	}
	maps.Copy(texts, s.texts)
	maps.Copy(texts, more)
	return Names{Texts: texts, Pods: s.Containerd.Subnet, Services: netip.MustParsePrefix(kube.ServiceRange)}
}
