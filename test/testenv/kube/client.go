package kube

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// dial makes the admin's clients.
func (c *Cluster) dial() error {
	var err error
	if c.config, err = c.ConfigFor(AdminUser); err != nil {
		return err
	}
	if c.http, err = c.connect(c.config); err != nil {
		return err
	}
	c.client, err = kubernetes.NewForConfigAndClient(c.config, c.http)
	return err
}

// Client is a client with the admin's rights and no rate limit.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// ClientFor makes a client of a user that Kubeconfig knows, without a rate limit. Its connections
// end with the cluster.
func (c *Cluster) ClientFor(user string) (kubernetes.Interface, error) {
	config, err := c.ConfigFor(user)
	if err != nil {
		return nil, err
	}
	client, err := c.connect(config)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfigAndClient(config, client)
}

// ConfigFor is what a user's kubeconfig says, for making other clients than ClientFor does.
func (c *Cluster) ConfigFor(user string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(user))
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no limit
	return config, nil
}

func (c *Cluster) connect(config *rest.Config) (*http.Client, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections = append(c.connections, client)
	return client, nil
}

// disconnect ends the connections that no request uses.
func (c *Cluster) disconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.connections {
		utilnet.CloseIdleConnectionsFor(client.Transport)
	}
}
