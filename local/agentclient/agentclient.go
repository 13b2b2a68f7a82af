// Package agentclient is the client of this device's agent, over its read-only port. It owns the connection: the
// address in the configuration, the time that an answer may take, and the errors that say what to check.
//
// It reads only. A Client has no state, and its methods may be called from any goroutine.
package agentclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// timeout bounds a request to the agent, which is on this device.
const timeout = 10 * time.Second

// Client asks one agent.
type Client struct{ base string }

// New returns a client of the agent that runs with the configuration. A port that listens at all addresses is asked at
// the loopback address.
func New(cfg *v1alpha2.EdgeCore) *Client {
	k := &cfg.Modules.Edged.TailoredKubeletConfig
	address := k.Address
	if ip := net.ParseIP(address); ip != nil && ip.IsUnspecified() {
		address = "127.0.0.1"
	}
	return &Client{base: "http://" + net.JoinHostPort(address, strconv.Itoa(int(k.ReadOnlyPort)))}
}

// Pods returns the pods of this device with their newest status.
func (c *Client) Pods(ctx context.Context) (*v1.PodList, error) {
	list := &v1.PodList{}
	return list, c.get(ctx, "/pods", list)
}

// Events returns the recent events of this device and its pods.
func (c *Client) Events(ctx context.Context) ([]v1.Event, error) {
	var list v1.EventList
	err := c.get(ctx, "/events", &list)
	return list.Items, err
}

// Devices returns the devices of this node with their twins.
func (c *Client) Devices(ctx context.Context) ([]devicetwin.Device, error) {
	var list devicetwin.DeviceList
	err := c.get(ctx, "/devices", &list)
	return list.Items, err
}

// Status returns what the agent reports of itself.
func (c *Client) Status(ctx context.Context) (*server.Info, error) {
	info := &server.Info{}
	return info, c.get(ctx, "/status", info)
}

// get requests a path and decodes the answer.
func (c *Client) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the agent does not answer at %s (is edgecore running, with this configuration?): %w",
			c.base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("the agent at %s answered %s: %s", c.base, resp.Status, text)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("answer of %s%s: %w", c.base, path, err)
	}
	return nil
}
