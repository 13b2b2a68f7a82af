package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// addresses are the pods' IPs, as the device has them.
func (d *demo) addresses(ctx context.Context) ([]string, error) {
	pods, err := d.edge.Pods(ctx)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, p := range pods {
		list = append(list, p.Status.PodIP)
	}
	slices.Sort(list)
	if len(list) != replicas {
		return nil, fmt.Errorf("edgecore has %d pods", len(list))
	}
	return list, nil
}

// get is the command that shows a pod's page on the device; its network is the only one that has the pods' addresses.
func get(address string) string { return "device curl -sS --max-time 5 http://" + address + "/" }

// pageIs checks that every pod serves this page.
func (d *demo) pageIs(ctx context.Context, want string) error {
	list, err := d.addresses(ctx)
	if err != nil {
		return err
	}
	for _, address := range list {
		out, err := d.quiet(ctx, get(address))
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(out); got != want {
			return fmt.Errorf("the pod at %s shows %q, want %q", address, got, want)
		}
	}
	return nil
}

// showPage prints one pod's page after checking all.
func (d *demo) showPage(ctx context.Context, want string) error {
	if err := d.until(ctx, patience, "every pod shows its page", func() error {
		return d.pageIs(ctx, want)
	}); err != nil {
		return err
	}
	list, err := d.addresses(ctx)
	if err != nil {
		return err
	}
	_, err = d.sh(ctx, get(list[0]))
	return err
}
