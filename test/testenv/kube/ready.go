package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (c *Cluster) etcdReady(ctx context.Context) error {
	socket := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.file(etcdSocket))
		},
	}}
	return healthy(ctx, socket, "http://etcd/health")
}

// apiServerReady waits for more than /readyz: the namespaces and the service that every cluster has
// are made after it, the namespace of the nodes' leases as the last.
func (c *Cluster) apiServerReady(ctx context.Context) error {
	if err := healthy(ctx, c.http, c.URL()+"/readyz"); err != nil {
		return err
	}
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespaceDefault, v1.NamespaceNodeLease} {
		if _, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	_, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	return err
}

// controllerManagerReady waits for what pods need from it.
func (c *Cluster) controllerManagerReady(ctx context.Context) error {
	if err := c.ControllerManager.healthy(ctx, "/healthz"); err != nil {
		return err
	}
	_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

func (c *Cluster) schedulerReady(ctx context.Context) error {
	return c.Scheduler.healthy(ctx, "/readyz")
}

func (p *Component) healthy(ctx context.Context, path string) error {
	return healthy(ctx, p.cluster.http, fmt.Sprintf("https://127.0.0.1:%d%s", p.port.Number, path))
}

// healthy returns nil when the answer is a success.
func healthy(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, answer.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
