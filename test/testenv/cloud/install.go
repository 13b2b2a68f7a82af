package cloud

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// InstallOptions say which cloudcore.
type InstallOptions struct {
	// Binary is cloudcore's.
	Binary string
	// Manifests is the folder of its manifests; empty is the project's, from the folder of a suite.
	Manifests string
	// Address is where nodes reach it; empty is 127.0.0.1.
	Address string
	// Hub are more keys of modules.cloudHub, Modules those of modules.
	Hub, Modules map[string]any
}

// Install installs cloudcore in a cluster and runs it until the test ends, with the rights that it has there and no
// others.
func Install(t *testing.T, cluster *kube.Cluster, opts InstallOptions) *Cloud {
	t.Helper()
	if opts.Manifests == "" {
		opts.Manifests = filepath.Join("..", "..", "deploy", "cloudcore")
	}
	kubeconfig, err := Prepare(t.Context(), cluster, opts.Manifests)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "cloud")
	c, err := New(Options{
		Binary:     opts.Binary,
		Dir:        dir,
		Kubeconfig: kubeconfig,
		Hub:        opts.Hub,
		Modules:    opts.Modules,
		Address:    opts.Address,
		Started: func(id daemon.Identity) error {
			return cluster.Host("cloudcore", kube.Guest{Process: id, Dir: dir})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		log, err := os.ReadFile(c.Log())
		if err != nil {
			t.Error(err)
		}
		for _, bad := range []string{"DATA RACE", "panic", "goroutine 1 ["} {
			if i := strings.Index(string(log), bad); i >= 0 {
				t.Errorf("cloudcore's log has %q:\n%.3000s", bad, log[max(0, i-200):])
			}
		}
		if t.Failed() {
			t.Logf("the end of cloudcore's log:\n%s", daemon.Tail(c.Log(), 30))
		}
	})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// Prepare applies the manifests in a folder that a cluster needs before cloudcore can start there, and returns the path
// of a kubeconfig with cloudcore's rights.
func Prepare(ctx context.Context, cluster *kube.Cluster, manifests string) (kubeconfig string, err error) {
	if err := cluster.Apply(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: kubeedge}\n"); err != nil {
		return "", err
	}
	// The RBAC rules first, since they take effect with a delay.
	for _, what := range [][2]string{
		{"-f", "base/rbac.yaml"}, {"-f", "base/policy.yaml"}, {"-k", "crds"}, {"-f", "base/devices.yaml"},
	} {
		if out, err := cluster.Kubectl(ctx, "apply", what[0], filepath.Join(manifests, what[1])); err != nil {
			return "", fmt.Errorf("%s: %w", out, err)
		}
	}
	return cluster.AddServiceAccount(ctx, "kubeedge", "cloudcore")
}

// EdgeHub is the edgeHub module of an agent that joins.
func (c *Cloud) EdgeHub(t *testing.T) map[string]any {
	t.Helper()
	token, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"enable": true, "heartbeat": 5, "token": token,
		"httpServer": "https://" + net.JoinHostPort(c.Address, strconv.Itoa(c.Bootstrap)),
		"websocket":  map[string]any{"enable": true, "server": net.JoinHostPort(c.Address, strconv.Itoa(c.Link))},
	}
}
