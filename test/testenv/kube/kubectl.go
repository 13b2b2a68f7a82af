package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kubectl runs kubectl as the admin and returns what it prints on standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, nil, args...)
}

// Apply does kubectl apply of the manifests in a text.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.kubectl(ctx, strings.NewReader(manifests), "apply", "-f", "-")
	return err
}

// ApplyIn is Apply for objects that name no namespace, which are put into one.
func (c *Cluster) ApplyIn(ctx context.Context, namespace, manifests string) error {
	_, err := c.kubectl(ctx, strings.NewReader(manifests), "apply", "-n", namespace, "-f", "-")
	return err
}

// KubectlPath is the program, for those who show the commands that they run.
func (c *Cluster) KubectlPath() string { return filepath.Join(c.binaries, "kubectl") }

func (c *Cluster) kubectl(ctx context.Context, input io.Reader, args ...string) (string, error) {
	// kubectl would else keep what it learns of the API in the home folder.
	all := append([]string{"--kubeconfig", c.Kubeconfig(AdminUser), "--cache-dir", c.file("kubectl-cache")}, args...)
	cmd := exec.CommandContext(ctx, c.KubectlPath(), all...)
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// KubeletCA is the file of the CA that has signed the certificates of nodes, or empty without Options.VerifyKubelets.
func (c *Cluster) KubeletCA() string {
	if !c.opts.VerifyKubelets {
		return ""
	}
	return c.file(caFile)
}

// KubeletClientFiles are the certificate and the key with which kube-apiserver connects to nodes.
func (c *Cluster) KubeletClientFiles() (cert, key string) {
	return c.file(kubeletFile), c.file(kubeletKeyFile)
}
