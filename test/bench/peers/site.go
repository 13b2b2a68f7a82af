package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubelet"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

// command is the command of pods. It exits one second after SIGTERM, like a server that finishes its requests.
var command = []string{"sh", "-c", "trap 'sleep 1; exit 0' TERM; sleep 1000000 & wait"}

// grace is the grace period of pods: the least that a kubelet gives, so that it is the same for all. No pod uses it up.
const grace = 2 * time.Second

// side is a node with its agent.
type side struct {
	subject string
	node    string
	cri     *cri.Client
	// cable is the proxy between the agent and its server.
	cable *proxy.Proxy
	pid   func() int
	log   string
}

// bench is one run.
type bench struct {
	options
	keep  *results.Recorder
	stops ending
	dir   string
	kube  *kube.Cluster
	api   kubernetes.Interface
	cloud *cloud.Cloud
	sides []*side // kubelet, edgecore
	// ctrd is the containerd of the floor, and of agents without a cloud.
	ctrd  *containerd.Instance
	floor *floor.Client
	// floors are like edgecore's pods.
	floors map[kind]*floor.Client
	// idled guards keep while both agents are looked at.
	idled sync.Mutex
	// batches counts groups of pods, whose names have the number.
	batches int
}

// settings are the kubelet settings of both agents; everything else has its default. Without a clusterDNS, both would
// report an event for each pod.
var settings = map[string]any{
	"maxPods": maxPods + 10, "clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "cluster.local",
}

// start starts the floor; the caller ends it, also after an error.
func (b *bench) start(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "edgecore-peers-"); err != nil {
		return err
	}
	b.stops.add(func(context.Context) error { return os.RemoveAll(b.dir) })
	say("starting a containerd")
	return b.startFloor(ctx)
}

// startNodes starts a cluster with both nodes; the caller ends them, also after an error.
func (b *bench) startNodes(ctx context.Context, binary string) (err error) {
	say("starting a cluster and a cloudcore")
	if b.kube, err = kube.Launch(ctx, kube.Options{ControllerManager: true}); err != nil {
		return err
	}
	b.stops.add(b.kube.Stop)
	b.api = b.kube.Client()
	if err := b.startCloud(ctx); err != nil {
		return err
	}
	say("starting a kubelet, an edgecore, and their containerds")
	for _, program := range []string{binary, b.edge} {
		if err := process.Uncache(program); err != nil {
			return err
		}
	}
	if err := b.startKubelet(ctx, binary); err != nil {
		return err
	}
	if err := b.startEdgecore(ctx); err != nil {
		return err
	}
	return b.ready(ctx)
}

func (b *bench) startCloud(ctx context.Context) error {
	kubeconfig, err := cloud.Prepare(ctx, b.kube, filepath.Join("deploy", "cloudcore"))
	if err != nil {
		return fmt.Errorf("prepare the cluster for cloudcore, with manifests below this folder: %w", err)
	}
	dir := filepath.Join(b.dir, "cloud")
	if b.cloud, err = cloud.New(cloud.Options{
		Binary: b.options.cloud, Dir: dir, Kubeconfig: kubeconfig, Started: b.guest("cloudcore", dir),
	}); err != nil {
		return err
	}
	b.stops.add(b.cloud.Stop)
	return b.cloud.Start(ctx)
}

// guest records a process with the cluster, so that the next run ends it if this one is killed.
func (b *bench) guest(name, dir string) func(daemon.Identity) error {
	return func(id daemon.Identity) error { return b.kube.Host(name, kube.Guest{Process: id, Dir: dir}) }
}

// runtime starts a containerd.
func (b *bench) runtime(ctx context.Context) (*containerd.Instance, *cri.Client, error) {
	ctrd, err := containerd.Start(ctx, containerd.Options{})
	if err != nil {
		return nil, nil, err
	}
	b.stops.add(ctrd.Stop)
	if err := ctrd.LoadImages(ctx); err != nil {
		return nil, nil, err
	}
	client, err := ctrd.Dial()
	if err != nil {
		return nil, nil, err
	}
	b.stops.add(func(context.Context) error { return client.Close() })
	return ctrd, client, nil
}

// connect creates the cable of an agent, and adds its node to b.sides.
func (b *bench) connect(subject, node, target string, client *cri.Client) (*side, error) {
	cable, err := proxy.Start(target)
	if err != nil {
		return nil, err
	}
	b.stops.add(func(context.Context) error { return cable.Close() })
	s := &side{subject: subject, node: node, cri: client, cable: cable}
	b.sides = append(b.sides, s)
	return s, nil
}

func (b *bench) startKubelet(ctx context.Context, binary string) error {
	ctrd, client, err := b.runtime(ctx)
	if err != nil {
		return err
	}
	s, err := b.connect(results.Kubelet, "peer-kubelet", strings.TrimPrefix(b.kube.URL(), "https://"), client)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "kubelet")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	k, err := kubelet.New(b.kube, kubelet.Options{
		Binary:     binary,
		Dir:        dir,
		NodeName:   s.node,
		Endpoint:   ctrd.Endpoint(),
		Containerd: ctrd.Socket(),
		CgroupRoot: ctrd.CgroupRoot(),
		Server:     "https://" + s.cable.Addr(),
		Config:     settings,
		Started:    b.guest(s.node, dir),
	})
	if err != nil {
		return err
	}
	b.stops.add(func(ctx context.Context) error {
		return errors.Join(k.Stop(ctx), agent.Unmount(dir), k.RemoveLogLinks())
	})
	s.pid, s.log = k.PID, k.Log()
	return k.Start(ctx)
}

func (b *bench) startEdgecore(ctx context.Context) error {
	ctrd, client, err := b.runtime(ctx)
	if err != nil {
		return err
	}
	s, err := b.connect(results.EdgeCore, "peer-edgecore", net.JoinHostPort("127.0.0.1", strconv.Itoa(b.cloud.Link)),
		client)
	if err != nil {
		return err
	}
	token, err := b.cloud.Token(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "edgecore")
	a, err := agent.New(agent.Options{
		Binary:     b.edge,
		Dir:        dir,
		NodeName:   s.node,
		Endpoint:   ctrd.Endpoint(),
		CgroupRoot: ctrd.CgroupRoot(),
		Kubelet:    settings,
		EdgeHub: map[string]any{
			"enable": true, "token": token,
			"httpServer": "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(b.cloud.Bootstrap)),
			"websocket":  map[string]any{"enable": true, "server": s.cable.Addr()},
		},
		Started: b.guest(s.node, dir),
	})
	if err != nil {
		return err
	}
	b.stops.add(func(ctx context.Context) error {
		return errors.Join(a.Stop(ctx), agent.Unmount(dir), a.RemoveLogLinks())
	})
	s.pid, s.log = a.PID, a.Log()
	return a.Start(ctx)
}

func (b *bench) startFloor(ctx context.Context) error {
	ctrd, client, err := b.runtime(ctx)
	if err != nil {
		return err
	}
	b.ctrd = ctrd
	b.floor = &floor.Client{
		CRI:          client,
		CgroupParent: ctrd.CgroupRoot() + "/floor",
		LogDir:       filepath.Join(b.dir, "floor"),
		Image:        images.Demo,
		Command:      command,
	}
	b.floors = map[kind]*floor.Client{}
	return nil
}

// ready waits until both nodes are Ready and pods can be made.
func (b *bench) ready(ctx context.Context) error {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	return daemon.Poll(ctx, func() error {
		if _, err := b.api.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		for _, s := range b.sides {
			node, err := b.api.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !isReady(node) {
				return fmt.Errorf("node %s is not Ready", s.node)
			}
		}
		return nil
	})
}

func isReady(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// of returns the node of a subject.
func (b *bench) of(subject string) *side {
	for _, s := range b.sides {
		if s.subject == subject {
			return s
		}
	}
	return nil
}
