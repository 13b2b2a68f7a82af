package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// The parts, in the order in which they start.
const (
	partAPI          = "kube-apiserver"
	partCertificates = "certificates"
)

// runCloud connects to kube-apiserver and runs cloudcore until ctx ends.
func runCloud(ctx context.Context, cfg *v1alpha1.CloudCore) error {
	rc, err := kubeConfig(&cfg.KubeAPIConfig, rest.InClusterConfig)
	if err != nil {
		return err
	}
	klog.InfoS("Starting cloudcore", "version", version.String(), "apiServer", rc.Host)
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("client of kube-apiserver %s: %w", rc.Host, err)
	}
	return serve(ctx, cfg, client)
}

// serve builds the parts, hands each what it needs, and runs them until ctx ends or one of them fails.
func serve(ctx context.Context, cfg *v1alpha1.CloudCore, client kubernetes.Interface) error {
	// What others stand on ends after them.
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	var backParts sync.WaitGroup
	defer backParts.Wait()
	defer stopBack()

	state := newParts(partAPI, partCertificates)
	defer context.AfterFunc(ctx, state.end)()
	registry := newRegistry()
	monitor, err := listenMonitor(ctx, &cfg.CommonConfig.MonitorServer)
	if err != nil {
		return err
	}
	if monitor != nil {
		backParts.Go(func() {
			if err := serveHTTP(back, monitor, monitorHandler(state, registry, cfg.CommonConfig.MonitorServer.EnableProfiling)); err != nil {
				klog.ErrorS(err, "Monitor server stopped", "address", monitor.Addr())
			}
		})
	}

	if err := awaitAPI(ctx, client, func(err error) { state.waiting(partAPI, err) }); err != nil {
		return err
	}
	state.set(partAPI, nil)
	authority, err := newAuthority(ctx, cfg, client)
	if err != nil {
		return err
	}
	state.set(partCertificates, nil)

	var https net.Listener
	if l := &cfg.Modules.CloudHub.HTTPS; l.Enable {
		if https, err = listen(ctx, "modules.cloudHub.https.port", address(l)); err != nil {
			return err
		}
	}
	front, frontCtx := errgroup.WithContext(ctx)
	front.Go(func() error { return authority.Run(frontCtx) })
	if https != nil {
		front.Go(func() error { return authority.Serve(frontCtx, https, client.CoreV1().Nodes()) })
	}
	err = front.Wait()
	klog.InfoS("cloudcore has ended; the edges' pods run on")
	return err
}

func newAuthority(ctx context.Context, cfg *v1alpha1.CloudCore, client kubernetes.Interface) (*certificates.Authority, error) {
	secrets, err := certificates.SecretsOf(ctx, client, certificates.Namespace)
	if err != nil {
		return nil, err
	}
	return certificates.New(ctx, secrets, certificateOptions(&cfg.Modules.CloudHub))
}

// certificateOptions works out what the configuration says about certificates. A certificate speaks for its node alone,
// and a name that is taken is given to nobody else: there is nothing to choose.
func certificateOptions(hub *v1alpha1.CloudHub) certificates.Options {
	addresses := append([]string{}, hub.AdvertiseAddress...)
	for _, name := range hub.DNSNames {
		if name != "" {
			addresses = append(addresses, name)
		}
	}
	return certificates.Options{
		CAFile: hub.TLSCAFile, CAKeyFile: hub.TLSCAKeyFile, CertFile: hub.TLSCertFile, KeyFile: hub.TLSPrivateKeyFile,
		Addresses: addresses, ProtectTaken: true,
		NodeLifetime: time.Duration(hub.EdgeCertSigningDuration) * 24 * time.Hour,
		TokenRefresh: time.Duration(hub.TokenRefreshDuration) * time.Hour,
	}
}

func address(l *v1alpha1.Listener) string {
	return net.JoinHostPort(l.Address, strconv.Itoa(int(l.Port)))
}
