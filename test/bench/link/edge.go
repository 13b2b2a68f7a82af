package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wan"
)

const (
	node     = "edge-1"
	edgeTime = 3 * time.Minute
)

// script ends at once when it is told to.
var script = []string{"sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"}

// edgeSite is a whole cluster with one real edge, in its default configuration but for the places of files.
type edgeSite struct {
	*fixture
	t     *table
	ctrd  *containerd.Instance
	edge  *agent.Agent
	floor *floor.Client
}

// measureEdge measures what one real edge puts on the wire, and how fast its pods are.
func measureEdge(ctx context.Context, t *table, o options) (err error) {
	s, err := newSite(ctx, o, siteOptions{cluster: kube.Options{ControllerManager: true}})
	defer func() { err = errors.Join(err, s.stops.end(ctx)) }()
	if err != nil {
		return err
	}
	e := &edgeSite{fixture: s, t: t}
	defer func() {
		if err != nil && e.edge != nil {
			say("the end of edgecore's log:\n%s", daemon.Tail(e.edge.Log(), 20))
		}
	}()
	if err := e.join(ctx, nil); err != nil {
		return err
	}
	if o.parts["burst"] {
		if err := e.burst(ctx); err != nil {
			return fmt.Errorf("burst: %w", err)
		}
	}
	if o.parts["bytes"] {
		if err := e.bytes(ctx); err != nil {
			return fmt.Errorf("count bytes: %w", err)
		}
	}
	if o.parts["devices"] {
		if err := e.devices(ctx); err != nil {
			return fmt.Errorf("devices: %w", err)
		}
	}
	return nil
}

// join starts a containerd and an edgecore, in a network if it is not nil, and waits until its node is Ready.
func (e *edgeSite) join(ctx context.Context, network *wan.Network) error {
	secret, err := e.api.CoreV1().Secrets("kubeedge").Get(ctx, "tokensecret", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get a token to join with: %w", err)
	}
	say("starting a containerd")
	runtime, opts, err := e.device(network)
	if err != nil {
		return err
	}
	if e.ctrd, err = containerd.Start(ctx, runtime); err != nil {
		return err
	}
	dir := filepath.Join(e.dir, "edge")
	e.stops.add(func(ctx context.Context) error { return errors.Join(agent.Unmount(dir), e.ctrd.Stop(ctx)) })
	if err := e.ctrd.LoadImages(ctx); err != nil {
		return err
	}
	cri, err := e.ctrd.Dial()
	if err != nil {
		return err
	}
	e.stops.add(func(context.Context) error { return cri.Close() })
	e.floor = &floor.Client{
		CRI:          cri,
		CgroupParent: e.ctrd.CgroupRoot() + "/floor",
		LogDir:       filepath.Join(e.dir, "floor"),
		Image:        images.Demo,
		Command:      script,
	}
	say("starting an edgecore")
	opts.Dir, opts.NodeName = dir, node
	opts.Endpoint, opts.CgroupRoot = e.ctrd.Endpoint(), e.ctrd.CgroupRoot()
	opts.EdgeHub["token"] = string(secret.Data["tokendata"])
	if e.edge, err = agent.New(opts); err != nil {
		return err
	}
	e.stops.add(e.edge.Stop)
	if err := e.edge.Start(ctx); err != nil {
		return err
	}
	return until(ctx, "the node is Ready", edgeTime, func() (bool, error) {
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return false, err
		}
		if _, err := e.api.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return false, ignoreMissing(err)
		}
		n, err := e.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		return err == nil && nodeReady(n), ignoreMissing(err)
	})
}

// device returns which containerd and edgecore run: this machine's own at the end of the cable, or in a network.
func (e *edgeSite) device(network *wan.Network) (containerd.Options, agent.Options, error) {
	server := e.cable.Addr()
	if network != nil {
		server = hubPort(e.cloud)
	}
	opts := agent.Options{
		Binary: e.opts.edge,
		EdgeHub: map[string]any{
			"enable":     true,
			"httpServer": "https://" + net.JoinHostPort(e.cloud.Address, strconv.Itoa(e.cloud.Bootstrap)),
			"websocket":  map[string]any{"enable": true, "server": server},
		},
	}
	if network == nil {
		return containerd.Options{}, opts, nil
	}
	opts.Dial, opts.Kubelet = network.Dial, map[string]any{"address": "0.0.0.0"}
	ctrd, err := exec.LookPath("containerd")
	if err != nil {
		return containerd.Options{}, opts, err
	}
	for _, program := range []*string{&ctrd, &opts.Binary} {
		if *program, err = network.Wrap(e.dir, *program); err != nil {
			return containerd.Options{}, opts, err
		}
	}
	return containerd.Options{Binary: ctrd}, opts, nil
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func nodeReady(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// demo is a pod as the floor makes them.
func demo(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			Containers: []v1.Container{{
				Name:            "main",
				Image:           images.Demo,
				ImagePullPolicy: v1.PullIfNotPresent,
				Command:         script,
			}},
		},
	}
}
