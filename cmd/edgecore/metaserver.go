package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged"
	"github.com/edgecore-io/edgecore/edged/podstate/apiendpoint"
	"github.com/edgecore-io/edgecore/edged/serve/servingcert"
	"github.com/edgecore-io/edgecore/edgehub/nodelink"
	"github.com/edgecore-io/edgecore/metamanager"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metaserver"
	"github.com/edgecore-io/edgecore/metaserver/address"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// servesAPI reports whether the device has the Kubernetes API for pods.
func servesAPI(cfg *v1alpha2.EdgeCore) bool {
	m := &cfg.Modules
	return m.MetaManager.Enable && m.MetaManager.MetaServer.Enable && m.Edged.Enable
}

// apiParts are what the API for pods needs of other modules.
type apiParts struct {
	db    *store.Store
	meta  *metamanager.Module
	hub   *nodelink.Module // nil on a device without a cloud
	pods  *edgedPods
	notes *health.Registry
	// notBefore is a time that is over, whatever the clock says.
	notBefore time.Time
}

// newMetaServer makes the API for pods, and what edged tells pods of it.
func newMetaServer(
	ctx context.Context, cfg *v1alpha2.EdgeCore, p apiParts,
) (*metaserver.Server, *apiendpoint.Endpoint, error) {
	own := &cfg.Modules.MetaManager.MetaServer
	at, errServer := own.ServerAddress()
	pods, errPods := own.PodAddresses()
	if err := errors.Join(errServer, errPods); err != nil {
		return nil, nil, err
	}
	opts := metaserver.Options{
		Node:         cfg.Modules.Edged.HostnameOverride,
		Dir:          servingcert.Dir(cfg.Modules.Edged.RootDirectory),
		Server:       at,
		PodAddresses: pods,
		ClusterIPs: func() []netip.Addr {
			ips, err := metamanager.APIServiceIPs(ctx, p.db)
			if err != nil && ctx.Err() == nil {
				klog.V(2).InfoS("API endpoint is not known by the API server's ClusterIPs", "err", err)
			}
			return ips
		},
		Domain:  cfg.Modules.Edged.TailoredKubeletConfig.ClusterDomain,
		Streams: noCloud{},
		Tokens:  podTokens{p.meta},
		Pods:    p.pods,
		Now:     certs.AtLeast(time.Now, p.notBefore),
		Fault:   func(object string, err error) { p.notes.SetError(health.APIEndpointFailing, object, err) },
	}
	if p.hub != nil {
		opts.Streams = p.hub.API()
	}
	s, err := metaserver.New(opts)
	if err != nil {
		return nil, nil, err
	}
	return s, &apiendpoint.Endpoint{Addresses: pods, Access: own.PodAccess, CA: s.CA}, nil
}

// removeAPIAddresses removes the addresses of an API for pods that was switched off.
func removeAPIAddresses(own *v1alpha2.MetaServer) {
	addresses, err := own.PodAddresses()
	if err != nil {
		return // of a section that is not used
	}
	for _, a := range addresses {
		if err := address.Remove(a.Addr()); err != nil {
			klog.ErrorS(err, "Address of the API for pods not removed")
		}
	}
}

// podTokens hands the tokens that metamanager has to the API for pods.
type podTokens struct{ meta *metamanager.Module }

// Follow implements metaserver.Tokens.
func (t podTokens) Follow(ctx context.Context, sink metaserver.TokenSink) error {
	return t.meta.FollowTokens(ctx, sink.Stored, sink.Removed)
}

// edgedPods are the pods of edged, which is made after the API.
type edgedPods struct{ module *edged.Module }

// HasAddress implements endpoint.Pods.
func (p *edgedPods) HasAddress(addr netip.Addr) bool { return p.module.HasAddress(addr) }

// Has implements endpoint.Pods.
func (p *edgedPods) Has(uid types.UID) bool { return p.module.Has(uid) }

// noCloud is the way to the cluster of a device that has joined none.
type noCloud struct{}

// Open implements forward.Streams.
func (noCloud) Open(context.Context) (net.Conn, error) {
	return nil, errors.New("this device has not joined a cluster")
}

// Connected implements forward.Streams.
func (noCloud) Connected() (is bool, since time.Time) { return false, time.Time{} }
