package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// lastLog prints the last line in the log of a web server.
const lastLog = "kubectl logs deployment/web --tail=1"

// reach shows that kubectl reaches the device behind NAT, and how.
func (d *demo) reach(ctx context.Context) error {
	d.title("Reach into its pods with kubectl, through NAT")
	d.say("kube-apiserver connects to a port of the node. This port answers on the device, but is out of reach from " +
		"here:")
	command := fmt.Sprintf("curl -sSk --max-time 5 https://%s:%d/pods", d.network.Address, d.edge.KubeletPort)
	if err := d.untilShown(ctx, "device "+command, "Unauthorized"); err != nil {
		return err
	}
	if out, err := d.sh(ctx, command); err == nil || !strings.Contains(out, "Failed to connect") {
		return errors.New("the device is not behind NAT, or curl says something else")
	}
	d.say("So cloudcore has an address and a port for each node, and writes them into the Node. When kube-apiserver " +
		"connects there,\ncloudcore asks the device over the link for a tunnel, and the device opens it, through the " +
		"same cable.")
	for _, command := range []string{
		"kubectl get node " + node + " -o custom-columns='NODE:.metadata.name,ADDRESS:.status.addresses[0].address," +
			"PORT:.status.daemonEndpoints.kubeletEndpoint.Port,ITS OWN ADDRESS:.status.addresses[1].address'",
		lastLog,
		"kubectl exec deployment/web -- cat /www/index.html",
	} {
		if _, err := d.sh(ctx, command); err != nil {
			return err
		}
	}
	d.say("metrics-server takes the same way, since it reads the same address and port from the Node. It asks each " +
		"node every 10 s,\nand has to ask twice before it knows. (A web server that waits for requests needs next to " +
		"nothing.)")
	if err := d.untilShown(ctx, "kubectl top node", `(?m)^`+node+` +\d+m .*Mi `); err != nil {
		return err
	}
	return d.untilShown(ctx, "kubectl top pod", fmt.Sprintf(`^NAME.*\n(web-\S+ +\d+m +\d+Mi *\n){%d}$`, replicas))
}

// outOfReach shows what kubectl says while the device is offline.
func (d *demo) outOfReach(ctx context.Context) error {
	if err := d.until(ctx, patience, "cloudcore says so to kubectl", func() error {
		out, err := d.quiet(ctx, lastLog)
		if err == nil || !strings.Contains(out, "is offline since") {
			return fmt.Errorf("kubectl logs: %w: %s", err, out)
		}
		return nil
	}); err != nil {
		return err
	}
	if _, err := d.sh(ctx, lastLog); err == nil {
		return errors.New("kubectl logs works, with no link")
	}
	return nil
}

// untilShown waits until a command succeeds with output that matches a pattern, and then shows it.
func (d *demo) untilShown(ctx context.Context, command, pattern string) error {
	want := regexp.MustCompile(pattern)
	if err := d.until(ctx, patience, command+" prints what it should", func() error {
		out, err := d.quiet(ctx, command)
		if err == nil && !want.MatchString(out) {
			err = fmt.Errorf("it prints %q", out)
		}
		return err
	}); err != nil {
		return err
	}
	_, err := d.sh(ctx, command)
	return err
}
