package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// clientTimeout bounds a question to the agent, which is on this device.
const clientTimeout = 10 * time.Second

// agent asks the agent's read-only port.
type agent struct {
	base string
	cfg  *v1alpha2.EdgeCore
}

// newAgent finds the port in the configuration; a device without a file has the defaults.
func newAgent(opts *globalOptions) (*agent, error) {
	cfg := v1alpha2.Default()
	if _, err := os.Stat(opts.Config); err == nil || !isDefaultConfig(opts.Config) {
		var err error
		if cfg, _, err = v1alpha2.Load(opts.Config); err != nil {
			return nil, err
		}
	}
	k := &cfg.Modules.Edged.TailoredKubeletConfig
	address := k.Address
	if ip := net.ParseIP(address); ip != nil && ip.IsUnspecified() {
		address = "127.0.0.1"
	}
	return &agent{base: "http://" + net.JoinHostPort(address, strconv.Itoa(int(k.ReadOnlyPort))), cfg: cfg}, nil
}

// get asks for a path and decodes the answer.
func (a *agent) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the agent does not answer at %s (is edgecore running, with this configuration?): %w", a.base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("the agent at %s answered %s: %s", a.base, resp.Status, text)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("answer of %s%s: %w", a.base, path, err)
	}
	return nil
}

func (a *agent) pods(ctx context.Context) (*v1.PodList, error) {
	list := &v1.PodList{}
	return list, a.get(ctx, "/pods", list)
}
