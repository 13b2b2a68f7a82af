package main

import (
	"time"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/nodeidentity"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// certificateOptions works out what the configuration says about certificates. A certificate speaks for its node alone,
// but for the one that old edges share, if they are let in; and a name that is taken is given to nobody else.
func certificateOptions(hub *v1alpha1.CloudHub) certificates.Options {
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

// hubOptions works out what the configuration says to cloudhub. Edges of ours are offered all that there is.
func hubOptions(hub *v1alpha1.CloudHub) cloudhub.Options {
	return cloudhub.Options{
		NodeLimit: int(hub.NodeLimit), Features: wire.AllFeatures(),
		KeepaliveInterval: seconds(hub.KeepaliveInterval), WriteTimeout: seconds(hub.WriteTimeout),
		LegacyCertificates: hub.LegacyCertificates,
	}
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// guardOptions works out what the configuration says to nodeidentity.
func guardOptions(hub *v1alpha1.CloudHub) nodeidentity.Options {
	return nodeidentity.Options{LookupsPerSource: int(hub.LookupsPerSource)}
}
