package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wan"
)

const (
	// tunnelPod is the pod that is asked for logs and runs commands.
	tunnelPod = "talker"
	// bulkBytes is the size of the file that is read.
	bulkBytes = 100 << 20
	// bulkFile is that file, in a volume.
	bulkFolder = "/bulk"
	bulkFile   = bulkFolder + "/file"
	// tunnelPorts is how many ports cloudcore has for nodes.
	tunnelPorts = 10
)

// tunnelSite is a device in a network of its own, whose kubelet API is reached directly and through a tunnel.
type tunnelSite struct {
	*edgeSite
	network *wan.Network
	client  *kubeletClient
	// direct and tunnel are the addresses of the kubelet API.
	direct, tunnel string
	// links are the ports of the node's links.
	links map[uint16]bool
}

// tunnelParts are what --tunnel can name, in the order in which they are measured.
var tunnelParts = []struct {
	name    string
	measure func(*tunnelSite, context.Context) error
}{
	{"firstbyte", (*tunnelSite).firstByte},
	{"bulk", (*tunnelSite).bulk},
	{"memory", (*tunnelSite).streamMemory},
	{"link", (*tunnelSite).linkBeside},
	{"slowlink", (*tunnelSite).slowLinkBeside},
	{"slow", (*tunnelSite).slow},
}

// measureTunnel compares the two ways in which kubectl reaches a device: the kubelet API's own port, and the tunnel. It
// makes the requests that kube-apiserver makes, both ways in turn.
func measureTunnel(ctx context.Context, t *table, o options) (err error) {
	network, err := wan.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Stop(context.WithoutCancel(ctx))) }()
	first, err := daemon.FreePort()
	if err != nil {
		return err
	}
	f, err := newSite(ctx, o, siteOptions{
		cluster: kube.Options{ControllerManager: true},
		address: wan.Host,
		modules: map[string]any{"cloudStream": map[string]any{
			"address": wan.Host, "firstPort": first, "lastPort": first + tunnelPorts,
		}},
	})
	defer func() { err = errors.Join(err, f.stops.end(ctx)) }()
	if err != nil {
		return err
	}
	s := &tunnelSite{edgeSite: &edgeSite{fixture: f, t: t}, network: network}
	defer func() {
		if err != nil && s.edge != nil {
			say("the end of edgecore's log:\n%s", daemon.Tail(s.edge.Log(), 20))
		}
	}()
	if err := s.join(ctx, network); err != nil {
		return err
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	var errs []error
	for _, part := range tunnelParts {
		if slices.Contains(o.tunnel, part.name) && ctx.Err() == nil {
			say("tunnel: %s", part.name)
			if err := part.measure(s, ctx); err != nil { // the other parts do not depend on it
				errs = append(errs, fmt.Errorf("%s: %w", part.name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// prepare runs the pod, and finds both addresses.
func (s *tunnelSite) prepare(ctx context.Context) error {
	script := fmt.Sprintf("head -c %d /dev/zero >%s && echo one line of a log && sleep 1000000", bulkBytes,
		bulkFile)
	_, err := s.api.CoreV1().Pods("default").Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: tunnelPod},
		Spec: v1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: new(int64(0)),
			Volumes:                       []v1.Volume{{Name: "bulk"}}, // emptyDir
			Containers: []v1.Container{{
				Name:         "main",
				Image:        images.Demo,
				Command:      []string{"sh", "-c", script},
				VolumeMounts: []v1.VolumeMount{{Name: "bulk", MountPath: bulkFolder}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	s.direct = net.JoinHostPort(wan.Device, strconv.Itoa(s.edge.KubeletPort))
	err = until(ctx, "the Node has its port at cloudcore", edgeTime, func() (bool, error) {
		n, err := s.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
		s.tunnel = net.JoinHostPort(wan.Host, strconv.Itoa(int(port)))
		return len(n.Status.Addresses) > 0 && n.Status.Addresses[0].Address == wan.Host && port > 0,
			wait(ctx, 100*time.Millisecond)
	})
	if err != nil {
		return err
	}
	s.links = map[uint16]bool{}
	if err := s.hubSockets(func(_ int, port uint16) error { s.links[port] = true; return nil }); err != nil {
		return err
	}
	if s.client, err = newKubeletClient(s.kube.KubeletClientFiles()); err != nil {
		return err
	}
	return until(ctx, "the pod logs", edgeTime, func() (bool, error) {
		_, err := s.client.firstByte(ctx, s.direct)
		return err == nil, wait(ctx, 100*time.Millisecond)
	})
}
