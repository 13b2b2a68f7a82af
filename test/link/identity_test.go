package link

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/nodeidentity"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestIdentity: the CA is replaced and a node is revoked while the node is connected and two cloudcores run. Its pod
// runs on.
func TestIdentity(t *testing.T) {
	c := startCluster(t, kube.Options{})
	other := c.WithCloud(t)
	e := startEdge(t, c, nil)
	e.apply(e.pod("one", env.Forever))
	e.running("one")
	before := e.RunningContainers()
	label := "{.metadata.labels." + strings.ReplaceAll(nodeidentity.HolderLabel, ".", `\.`) + "}"
	var first string
	c.NodeUntil(e.NodeName, "to be labelled with its device", func(n *v1.Node) error {
		if first = n.Labels[nodeidentity.HolderLabel]; first == "" {
			return fmt.Errorf("labels are %v, want %s", n.Labels, nodeidentity.HolderLabel)
		}
		return nil
	})
	out, err := c.Kube.Kubectl(t.Context(), "label", "node", e.NodeName, nodeidentity.HolderLabel+"=x", "--overwrite",
		"--as=system:node:"+e.NodeName, "--as-group=system:nodes")
	if err == nil || c.Kubectl("get", "node", e.NodeName, "-o", "jsonpath="+label) != first {
		t.Errorf("a node labels itself with another device: %v, %s; want it forbidden", err, out)
	}

	ca := caOf(t, c.Cloud)
	e.admin("rotate", "ca")
	for _, replica := range []*cloud.Cloud{c.Cloud, other.Cloud} {
		wait.True(t, "the new CA on each cloudcore", func() bool { return !bytes.Equal(caOf(t, replica), ca) })
	}
	env.Must(t, c.Cloud.Kill9(t.Context()))
	env.Must(t, c.Cloud.Start(t.Context()))
	e.apply(e.pod("two", env.Forever)) // over a connection to a certificate of the new CA
	e.running("two")
	e.admin("rotate", "ca", "--finish")
	e.says("is of a CA that the cloud no longer trusts")
	e.rejoin(e.admin("gettoken", "--node", e.NodeName))
	e.apply(e.pod("three", env.Forever))
	e.running("three")

	e.admin("revoke", e.NodeName)
	e.says("node " + e.NodeName + " was revoked at ")
	e.rejoin(e.admin("gettoken", "--node", e.NodeName, "--replace"))
	e.apply(e.pod("four", env.Forever))
	e.running("four")
	e.unchanged(before, "a new CA and a revocation")
	if now := c.Kubectl("get", "node", e.NodeName, "-o", "jsonpath="+label); now == first {
		t.Errorf("the node belongs to %s, want the device of the last join", now)
	}
}

// caOf asks a cloudcore for its CA.
func caOf(t *testing.T, c *cloud.Cloud) []byte {
	t.Helper()
	client := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	resp, err := client.Get("https://127.0.0.1:" + strconv.Itoa(c.Bootstrap) + "/ca.crt")
	env.Must(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	env.Must(t, err)
	return data
}

// admin runs a command of cloudcore that must succeed, and returns what it prints.
func (e *edge) admin(args ...string) string {
	e.T.Helper()
	out, err := exec.CommandContext(e.T.Context(), built.Cloud, append(args, "--config", e.cluster.Cloud.Config())...).
		Output()
	if err != nil {
		e.T.Fatalf("cloudcore %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// says waits until the agent has logged a text.
func (e *edge) says(text string) {
	e.T.Helper()
	wait.Until(e.T, "the agent to log "+text, func() error {
		data, err := os.ReadFile(e.Log())
		if err == nil && !strings.Contains(string(data), text) {
			err = fmt.Errorf("the end of its log is:\n%s", daemon.Tail(e.Log(), 5))
		}
		return err
	})
}

// rejoin runs edgecore join beside the agent, which takes the new certificate.
func (e *edge) rejoin(token string) {
	e.T.Helper()
	cmd := exec.CommandContext(e.T.Context(), built.Edge, "join", "--config", e.Config(), "--cloudcore-ipport",
		e.cable.Addr(),
		"--certport", strconv.Itoa(e.cluster.Cloud.Bootstrap), "--edgenode-name", e.NodeName, "--token-file", "-",
		"--no-start")
	cmd.Stdin = strings.NewReader(token)
	if out, err := cmd.CombinedOutput(); err != nil {
		e.T.Fatalf("join: %v\n%s", err, out)
	}
}
