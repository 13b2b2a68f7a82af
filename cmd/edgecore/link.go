package main

import (
	"context"
	"os"
	"sync"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/edged/clock"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edgehub"
	"github.com/edgecore-io/edgecore/edgehub/certificates"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// link is edgehub with the certificate that it needs: it waits for one, and has it renewed.
type link struct {
	*edgehub.Module
	keeper *certificates.Keeper
	// rotate: the certificate is renewed before it ends.
	rotate bool
}

// newLink makes the link to the cloud; nil where this device has joined none.
func newLink(bus *beehive.Bus, cfg *v1alpha2.EdgeCore, conditions *health.Registry) (*link, error) {
	hub := &cfg.Modules.EdgeHub
	if !hub.Enable {
		return nil, nil
	}
	files := certs.Files{CA: hub.TLSCAFile, Cert: hub.TLSCertFile, Key: hub.TLSPrivateKeyFile}
	token := certificates.TokenFrom(certificates.DefaultTokenFile, hub.Token)
	if _, err := os.Stat(files.Cert); os.IsNotExist(err) {
		if text, err := token(); err == nil && text == "" {
			klog.InfoS("This device has joined no cloud, and runs its own pods; `edgecore join --help` tells how to join one")
			return nil, nil
		}
	}
	l := &link{rotate: hub.RotateCertificates}
	l.keeper = certificates.New(certificates.Options{
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
	})
	return l, err
}

// Run implements beehive.Module.
func (l *link) Run(ctx context.Context) error {
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

// clockSet is told when somebody sets the clock: a certificate that was not valid yet may be now.
func (l *link) clockSet() { l.Retry() }

// clockBound is a time that is over: that of the build, of the certificates, and of what was last written to the store.
func clockBound(cfg *v1alpha2.EdgeCore) clock.Bound {
	hub, db := &cfg.Modules.EdgeHub, cfg.Database.DataSource
	return clock.Newest(
		clock.Bound{Time: version.Built(), Of: "this program was made"},
		clock.Bound{Time: certs.Files{CA: hub.TLSCAFile, Cert: hub.TLSCertFile, Key: hub.TLSPrivateKeyFile}.ClockBound(), Of: "the node's certificate was made"},
		clock.Written("the store was written", db, db+"-wal"),
	)
}

// status is how the link is, for the status command.
func (l *link) status() server.Link {
	s := l.State()
	return server.Link{Connected: s.Connected, Since: s.Since, Protocol: s.Protocol, Server: s.Server, Reason: s.Reason}
}
