// Package nodelink runs the node's link to the cloud with the certificate that it needs: it waits for a certificate,
// runs edgehub with it, and gets it renewed before it expires.
//
// It owns the decision whether there is a link at all, and the conditions NotJoined and CertificateEnding. Package
// certificates gets and renews the certificate, and package edgehub dials and keeps the link.
package nodelink

import (
	"context"
	"net"
	"os"
	"sync"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/edgehub"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// Module is edgehub with the node's certificate. It implements beehive.Module.
type Module struct {
	*edgehub.Module
	keeper *nodecert.Keeper
	// rotate: the certificate is renewed before it expires.
	rotate bool
}

// Options are what the link needs beside the configuration.
type Options struct {
	// KubeletAPI and ReachedAt are those of edgehub.Options.
	KubeletAPI func(ctx context.Context) (net.Conn, error)
	ReachedAt  func(address string)
	// TokenFile is where the installer of KubeEdge puts the token; a file there takes precedence over the
	// configuration.
	TokenFile string
	// Stream and API are those of edgehub.Options.
	Stream edgehub.StreamOptions
	API    bool
}

// New returns the link to the cloud; nil without an error on a device that has joined none.
func New(bus *beehive.Bus, cfg *v1alpha2.EdgeCore, conditions *health.Registry, o Options) (*Module, error) {
	hub := &cfg.Modules.EdgeHub
	if !hub.Enable {
		return nil, nil
	}
	files := filesOf(hub)
	token := nodecert.TokenFrom(o.TokenFile, hub.Token)
	if _, err := os.Stat(files.Cert); os.IsNotExist(err) {
		if text, err := token(); err == nil && text == "" {
			klog.InfoS("This device has joined no cloud, and runs its own pods; `edgecore join --help` tells how to " +
				"join one")
			return nil, nil
		}
	}
	l := &Module{rotate: hub.RotateCertificates}
	l.keeper = nodecert.New(nodecert.Options{
		Server: hub.HTTPServer, Node: cfg.Modules.Edged.HostnameOverride, Files: files, Token: token,
		Report: func(err error) {
			code := health.NotJoined
			if l.keeper.Check() == nil {
				code = health.CertificateEnding // there is one, and it is not renewed
			}
			for _, c := range []health.Code{health.NotJoined, health.CertificateEnding} {
				if c == code {
					conditions.SetError(c, "", err)
				} else {
					conditions.Clear(c, "")
				}
			}
		},
	})
	var err error
	l.Module, err = edgehub.New(edgehub.Options{
		Node: cfg.Modules.Edged.HostnameOverride, Config: *hub, Bus: bus, Health: conditions, NewCA: l.keeper.RenewSoon,
		KubeletAPI: o.KubeletAPI, ReachedAt: o.ReachedAt, Stream: o.Stream, API: o.API,
	})
	return l, err
}

// CheckNode returns an error if the device can never be connected with its name: its certificate is another node's, and
// no token gets one of this node. Pods of the other node would be stopped in vain. tokenFile is that of Options.
func CheckNode(cfg *v1alpha2.EdgeCore, tokenFile string) error {
	hub := &cfg.Modules.EdgeHub
	if !hub.Enable {
		return nil
	}
	err := nodecert.New(nodecert.Options{
		Node: cfg.Modules.Edged.HostnameOverride, Files: filesOf(hub),
		Token: nodecert.TokenFrom(tokenFile, hub.Token),
	}).OfAnother()
	if err != nil {
		return strict.Problems{{Path: "modules.edged.hostnameOverride", Text: err.Error()}}
	}
	return nil
}

func filesOf(hub *v1alpha2.EdgeHub) certs.Files {
	return certs.Files{CA: hub.TLSCAFile, Cert: hub.TLSCertFile, Key: hub.TLSPrivateKeyFile}
}

// Run implements beehive.Module.
func (l *Module) Run(ctx context.Context) error {
	if err := l.keeper.Await(ctx); err != nil {
		return nil // ctx has ended
	}
	ctx, cancel := context.WithCancel(ctx)
	var rotation sync.WaitGroup
	defer rotation.Wait()
	defer cancel()
	if l.rotate {
		rotation.Go(func() { l.keeper.Rotate(ctx, l.Reconnect) })
	}
	return l.Module.Run(ctx)
}
