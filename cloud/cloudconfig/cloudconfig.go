// Package cloudconfig makes the options of cloudcore's parts from its configuration.
//
// It owns this translation. It promises that a key that package v1alpha1 calls live changes the options: its test goes
// through the list of these keys. It depends on the configuration alone.
package cloudconfig

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/cloudstream"
	"github.com/edgecore-io/edgecore/cloud/devicecontroller"
	"github.com/edgecore-io/edgecore/cloud/nodeidentity"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// CertificateOptions returns what the configuration says about certificates. A certificate speaks for its node alone,
// except for the one that old nodes share, if these are let in. A name that is taken is given to no other device.
func CertificateOptions(hub *v1alpha1.CloudHub) certificates.Options {
	addresses := append([]string{}, hub.AdvertiseAddress...)
	for _, name := range hub.DNSNames {
		if name != "" {
			addresses = append(addresses, name)
		}
	}
	return certificates.Options{
		CAFile: hub.TLSCAFile, CAKeyFile: hub.TLSCAKeyFile, CertFile: hub.TLSCertFile, KeyFile: hub.TLSPrivateKeyFile,
		Addresses: addresses, ProtectTaken: true, AllowLegacy: hub.LegacyCertificates,
		NodeLifetime: time.Duration(hub.EdgeCertSigningDuration) * 24 * time.Hour,
		TokenRefresh: time.Duration(hub.TokenRefreshDuration) * time.Hour,
	}
}

// HubOptions returns what the configuration says about cloudhub. Nodes that run edgecore are offered every feature.
func HubOptions(hub *v1alpha1.CloudHub) cloudhub.Options {
	return cloudhub.Options{
		NodeLimit: int(hub.NodeLimit), Features: wire.AllFeatures(),
		KeepaliveInterval: seconds(hub.KeepaliveInterval), WriteTimeout: seconds(hub.WriteTimeout),
		LegacyCertificates: hub.LegacyCertificates,
	}
}

// DeviceOptions returns what the configuration says about devicecontroller.
func DeviceOptions(d *v1alpha1.DeviceController) devicecontroller.Options {
	return devicecontroller.Options{
		WriteInterval: seconds(d.StatusInterval), NodeWrites: float64(d.StatusWritesPerNode),
	}
}

// StreamOptions returns what the configuration says about cloudstream. It is reached at host if the configuration names
// no address.
func StreamOptions(c *v1alpha1.CloudStream, host string) cloudstream.Options {
	address, _ := netip.ParseAddr(cmp.Or(c.Address, host)) // New reports one that is not valid
	listen, _ := netip.ParseAddr(c.ListenAddress)
	return cloudstream.Options{
		Address:        address,
		Listen:         listen,
		FirstPort:      c.FirstPort,
		LastPort:       c.LastPort,
		Streams:        int(c.StreamsPerNode),
		BytesPerSecond: c.BytesPerSecondPerNode,
		Direct:         c.Tunnel == v1alpha1.TunnelAuto,
	}
}

// GuardOfCallers returns who may ask the kubelet API of a node of KubeEdge's, with the kubelet's own defaults.
func GuardOfCallers(node string, cloud auth.Cloud, cas *auth.CAs) auth.Options {
	return auth.Options{
		Node: node, Cloud: cloud, CAs: cas,
		Tokens: true, TokenAge: 2 * time.Minute, AllowedAge: 5 * time.Minute, DeniedAge: 30 * time.Second,
	}
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// GuardOptions returns what the configuration says about nodeidentity.
func GuardOptions(hub *v1alpha1.CloudHub) nodeidentity.Options {
	return nodeidentity.Options{LookupsPerSource: int(hub.LookupsPerSource)}
}
