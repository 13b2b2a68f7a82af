package kubeedge

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// Cloud is KubeEdge's cloudcore with its files, beside a cluster.
type Cloud struct {
	// Link, Bootstrap and Stream are its ports: of WebSockets, of certificates and of stream tunnels.
	Link, Bootstrap, Stream int

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
	for _, port := range []*int{&c.Link, &c.Bootstrap, &c.Stream, &monitor} {
		if *port, err = daemon.FreePort(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := writePair(file("stream.crt"), file("stream.key")); err != nil {
		return nil, err
	}
	s := settings{
		"kubeAPIConfig.kubeConfig":                    kubeconfig,
		"commonConfig.monitorServer.bindAddress":      "127.0.0.1:" + strconv.Itoa(monitor),
		"modules.cloudHub.advertiseAddress":           []string{"127.0.0.1"},
		"modules.cloudHub.dnsNames":                   []string{"localhost"},
		"modules.cloudHub.websocket.address":          "127.0.0.1",
		"modules.cloudHub.websocket.port":             c.Link,
		"modules.cloudHub.https.address":              "127.0.0.1",
		"modules.cloudHub.https.port":                 c.Bootstrap,
		"modules.cloudHub.unixsocket.enable":          false,
		"modules.cloudHub.tlsCAFile":                  file("ca.crt"),
		"modules.cloudHub.tlsCAKeyFile":               file("ca.key"),
		"modules.cloudHub.tlsCertFile":                file("server.crt"),
		"modules.cloudHub.tlsPrivateKeyFile":          file("server.key"),
		"modules.cloudStream.enable":                  true,
		"modules.cloudStream.tunnelPort":              c.Stream,
		"modules.cloudStream.streamPort":              streamPort,
		"modules.cloudStream.tlsStreamCAFile":         file("stream.crt"),
		"modules.cloudStream.tlsStreamCertFile":       file("stream.crt"),
		"modules.cloudStream.tlsStreamPrivateKeyFile": file("stream.key"),
		"modules.dynamicController.enable":            false,
		"modules.router.enable":                       false,
		"modules.iptablesManager.enable":              false,
		"modules.taskManager.enable":                  false,
		"modules.nodeUpgradeJobController.enable":     false,
		"modules.cloudHub.authorization.enable":       false,
	}
	return c, s.write(ctx, binary, c.config())
}

// streamPort is the port that the first cloudcore of a cluster writes into Nodes. It expects iptables to lead from
// there to its stream server, which is simply there instead.
const streamPort = 10351

// writePair writes a certificate that is signed by itself, and its key.
func writePair(certFile, keyFile string) error {
	key, err := certs.NewKey()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cloudcore"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	text, err := certs.EncodeKeyPEM(key)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(certFile, certs.EncodeCertPEM(der), 0o600), os.WriteFile(keyFile, text, 0o600))
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
