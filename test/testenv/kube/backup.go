package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Backup copies etcd's data into a folder, as an administrator backs up a cluster: etcd is stopped for it, and runs
// again with kube-apiserver when Backup returns.
func (c *Cluster) Backup(ctx context.Context, dir string) error {
	return c.withoutEtcd(ctx, func() error { return os.CopyFS(dir, os.DirFS(c.etcdData())) })
}

// Restore replaces etcd's data by a backup. All components are stopped for it and started again, as Kubernetes' manual
// wants: what they have read does not hold any more. Resource versions begin again at that of the backup.
func (c *Cluster) Restore(ctx context.Context, dir string) error {
	return c.withoutEtcd(ctx, func() error {
		if err := os.RemoveAll(c.etcdData()); err != nil {
			return err
		}
		return os.CopyFS(c.etcdData(), os.DirFS(dir))
	})
}

func (c *Cluster) etcdData() string { return c.file("etcd") }

// withoutEtcd stops what runs of the control plane, calls change, and starts it again.
func (c *Cluster) withoutEtcd(ctx context.Context, change func() error) error {
	all := []*Component{c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd}
	var ran []*Component // in the order in which they start
	for _, p := range all {
		if !p.Running() {
			continue
		}
		if err := p.Stop(ctx); err != nil {
			return err
		}
		ran = append([]*Component{p}, ran...)
	}
	err := change()
	for _, p := range ran {
		err = errors.Join(err, p.Start(ctx))
	}
	if err != nil {
		return fmt.Errorf("data of the etcd of cluster %s: %w", c.name, err)
	}
	return nil
}
