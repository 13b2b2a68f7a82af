package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/metricsserver"
	"github.com/edgecore-io/edgecore/test/testenv/nat"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

const (
	node = "edge-1"
	// heartbeat is the device's, in seconds; gracePeriod is how long Kubernetes waits for one before it calls a node
	// NotReady. Both are shorter than usual, so that the story is; but cloudcore renews a lease every 10 s at most.
	heartbeat   = 5
	gracePeriod = 25 * time.Second
)

// startCluster starts etcd, Kubernetes and metrics-server, after everything has been built.
func (d *demo) startCluster(ctx context.Context) error {
	binaries, err := kube.Build(ctx, d.out)
	if err != nil {
		return err
	}
	metricsServer, err := metricsserver.Build(ctx, d.out)
	if err != nil {
		return err
	}
	if d.kube, err = kube.Launch(ctx, kube.Options{
		ControllerManager: true, Scheduler: true, NodeMonitorGracePeriod: gracePeriod, NodeMonitorPeriod: time.Second,
		Aggregation:    true,
		APIServerFlags: []string{"--kubelet-preferred-address-types=InternalIP"}, // as with kubeadm
		Binaries:       binaries,
	}); err != nil {
		return err
	}
	d.later(d.kube.Stop)
	if d.metrics, err = metricsserver.Launch(ctx, metricsServer, d.kube,
		filepath.Join(d.dir, "metrics-server")); err != nil {
		return err
	}
	d.later(d.metrics.Stop)
	if err := os.Symlink(d.kube.KubectlPath(), filepath.Join(d.bin(), "kubectl")); err != nil {
		return err
	}
	if err := os.Symlink(d.kube.Kubeconfig(kube.AdminUser), d.kubeconfig()); err != nil {
		return err
	}
	// Until then kubectl prints errors about an API that does not answer.
	return d.until(ctx, patience, "kube-apiserver reaches metrics-server", func() error {
		_, err := d.quiet(ctx, "kubectl wait --for=condition=Available --timeout=10s apiservice/"+
			metricsserver.APIService)
		return err
	})
}

// startNetwork creates the device's network, and the command "device", which runs another command in it.
func (d *demo) startNetwork(ctx context.Context) (err error) {
	if d.network, err = nat.Start(ctx); err != nil {
		return err
	}
	d.later(d.network.Stop)
	return d.network.Wrap(d.onDevice())
}

// onDevice is the path of the command "device".
func (d *demo) onDevice() string { return filepath.Join(d.bin(), "device") }

// wrap returns a program that runs another one in the device's network.
func (d *demo) wrap(program string) (string, error) {
	path := filepath.Join(d.wrapped(), filepath.Base(program))
	return path, d.network.Wrap(path, program)
}

// startCloud starts cloudcore with the rights of deploy/cloudcore, and the cables. cloudcore itself listens at an
// address that the device cannot reach.
func (d *demo) startCloud(ctx context.Context) error {
	if err := d.startNetwork(ctx); err != nil {
		return err
	}
	kubeconfig, err := d.kube.AddServiceAccount(ctx, "kubeedge", "cloudcore")
	if err != nil {
		return err
	}
	if d.cloud, err = cloud.New(cloud.Options{
		Binary:     d.cloudcore,
		Dir:        filepath.Join(d.dir, "cloud"),
		Kubeconfig: kubeconfig,
		Hub:        map[string]any{"advertiseAddress": []string{d.network.Host}}, // where the cables begin
	}); err != nil {
		return err
	}
	d.later(d.cloud.Stop)
	d.show("cloudcore --config " + shown(d.cloud.Config()) + " &")
	if err := d.cloud.Start(ctx); err != nil {
		return err
	}
	for _, port := range []int{d.cloud.Link, d.cloud.Bootstrap} {
		c, err := proxy.StartOn(d.network.Host, net.JoinHostPort(d.cloud.Address, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		d.later(func(context.Context) error { return c.Close() })
		d.cables = append(d.cables, c)
	}
	return nil
}

// startRuntime starts the device's containerd.
func (d *demo) startRuntime(ctx context.Context) (err error) {
	program, err := exec.LookPath("containerd")
	if err != nil {
		return fmt.Errorf("%w; hack/setup installs it", err)
	}
	if program, err = d.wrap(program); err != nil {
		return err
	}
	if d.ctrd, err = containerd.Start(ctx, containerd.Options{
		Root: filepath.Join(d.dir, "containerd"), Binary: program,
	}); err != nil {
		return err
	}
	d.later(func(ctx context.Context) error {
		err := d.ctrd.Stop(ctx)
		if left := d.ctrd.Leaks(ctx); err == nil && len(left) > 0 {
			err = fmt.Errorf("this is left of the containerd: %s", strings.Join(left, ", "))
		}
		return err
	})
	if err := d.ctrd.LoadImages(ctx); err != nil {
		return err
	}
	if d.cri, err = d.ctrd.Dial(); err != nil {
		return err
	}
	d.later(func(context.Context) error { return d.cri.Close() })
	return nil
}

// makeDevice writes the configuration of a device that has joined no cloud yet.
func (d *demo) makeDevice() error {
	program, err := d.wrap(d.edgecore)
	if err != nil {
		return err
	}
	d.edge, err = agent.New(agent.Options{
		Binary:     program,
		Dir:        filepath.Join(d.dir, "edge"),
		NodeName:   node,
		Endpoint:   d.ctrd.Endpoint(),
		CgroupRoot: d.ctrd.CgroupRoot(),
		Kubelet:    map[string]any{"nodeStatusUpdateFrequency": "2s"},
		Dial:       d.network.Dial,
	})
	if err == nil {
		d.later(d.edge.Stop)
	}
	return err
}

// join is the command by which the device joins.
func (d *demo) join() string {
	link, bootstrap := d.cables[0].Addr(), d.cables[1].Addr()
	_, certPort, _ := net.SplitHostPort(bootstrap) // it is a listener's address
	return strings.Join([]string{
		"cloudcore gettoken --config " + shown(d.cloud.Config()) + " |",
		"device edgecore join --cloudcore-ipport " + link + " --certport " + certPort + " --token-file -",
		"--config " + shown(d.edge.Config()) + " --cert-path " + shown(filepath.Join(d.edge.Dir, "certs")),
		"--set modules.edgeHub.heartbeat=" + strconv.Itoa(heartbeat) + " --no-start",
	}, " \\\n    ")
}

// startAgent starts edgecore.
func (d *demo) startAgent(ctx context.Context) error {
	d.show("device edgecore --config " + shown(d.edge.Config()) + " &")
	return d.edge.Start(ctx)
}

// lives are the running containers, by id, with their start times.
func (d *demo) lives(ctx context.Context) (map[string]int64, error) {
	list, err := d.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, err
	}
	lives := map[string]int64{}
	for _, c := range list.Containers {
		status, err := d.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			return nil, err
		}
		lives[c.Id] = status.Status.StartedAt
	}
	return lives, nil
}
