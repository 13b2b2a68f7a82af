package kubeedge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// Cloud is KubeEdge's cloudcore with its files, beside a cluster.
type Cloud struct {
	// Link and Bootstrap are its ports: of WebSockets and of certificates.
	Link, Bootstrap int

	binary, dir string
	api         kubernetes.Interface
	proc        *daemon.Process
}

// tokenPatience is how long it may take until there is a token to join with.
const tokenPatience = time.Minute

// NewCloud makes the files of a cloudcore, and in the cluster what it needs there.
func NewCloud(ctx context.Context, version, binary, dir string, cluster *kube.Cluster) (*Cloud, error) {
	c := &Cloud{binary: binary, dir: dir, api: cluster.Client()}
	files, err := source(ctx, version)
	if err != nil {
		return nil, err
	}
	if err := cluster.Apply(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: kubeedge}\n"); err != nil {
		return nil, err
	}
	if out, err := cluster.Kubectl(ctx, "apply", "--server-side", "-R", "-f",
		filepath.Join(files, "manifests", "charts", "cloudcore", "crds")); err != nil {
		return nil, fmt.Errorf("apply KubeEdge's CRDs: %w\n%s", err, out)
	}
	kubeconfig, err := cluster.AddUser("cloudcore")
	if err != nil {
		return nil, err
	}
	if out, err := cluster.Kubectl(ctx, "create", "clusterrolebinding", "kubeedge-cloudcore",
		"--clusterrole=cluster-admin", "--user=cloudcore"); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	var monitor int
	for _, port := range []*int{&c.Link, &c.Bootstrap, &monitor} {
		if *port, err = daemon.FreePort(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	s := settings{
		"kubeAPIConfig.kubeConfig":                kubeconfig,
		"commonConfig.monitorServer.bindAddress":  "127.0.0.1:" + strconv.Itoa(monitor),
		"modules.cloudHub.advertiseAddress":       []string{"127.0.0.1"},
		"modules.cloudHub.dnsNames":               []string{"localhost"},
		"modules.cloudHub.websocket.address":      "127.0.0.1",
		"modules.cloudHub.websocket.port":         c.Link,
		"modules.cloudHub.https.address":          "127.0.0.1",
		"modules.cloudHub.https.port":             c.Bootstrap,
		"modules.cloudHub.unixsocket.enable":      false,
		"modules.cloudHub.tlsCAFile":              file("ca.crt"),
		"modules.cloudHub.tlsCAKeyFile":           file("ca.key"),
		"modules.cloudHub.tlsCertFile":            file("server.crt"),
		"modules.cloudHub.tlsPrivateKeyFile":      file("server.key"),
		"modules.cloudStream.enable":              false,
		"modules.dynamicController.enable":        false,
		"modules.router.enable":                   false,
		"modules.iptablesManager.enable":          false,
		"modules.taskManager.enable":              false,
		"modules.nodeUpgradeJobController.enable": false,
		"modules.cloudHub.authorization.enable":   false,
	}
	return c, s.write(ctx, binary, c.config())
}

func (c *Cloud) config() string { return filepath.Join(c.dir, "cloudcore.yaml") }

// Log is what the cloud writes.
func (c *Cloud) Log() string { return filepath.Join(c.dir, "cloudcore.log") }

// Start starts the cloud and waits until nodes can join, with the token that it returns.
func (c *Cloud) Start(ctx context.Context) (token string, err error) {
	if c.proc, err = daemon.Start(c.Log(), nil, c.binary, "--config", c.config()); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, daemon.Scaled(tokenPatience))
	defer cancel()
	err = daemon.Poll(ctx, func() error {
		if !c.proc.Running() {
			return daemon.Fatal(errors.New("it has ended"))
		}
		secret, err := c.api.CoreV1().Secrets("kubeedge").Get(ctx, "tokensecret", metav1.GetOptions{})
		if err == nil {
			token = string(secret.Data["tokendata"])
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("start KubeEdge's cloudcore: %w\n%s", err, daemon.Tail(c.Log(), 20))
	}
	return token, nil
}

// Stop ends the cloud.
func (c *Cloud) Stop(ctx context.Context) error {
	if !c.proc.Running() {
		return nil
	}
	return c.proc.End(ctx, syscall.SIGKILL) // it has nothing to lose: its state is in the cluster
}
