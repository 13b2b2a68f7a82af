package agentconfig

import (
	"net"

	"k8s.io/utils/ptr"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/edged/serve/api"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/auth"
)

// apiOptions works out what the configuration says about the authenticated port.
func apiOptions(own *v1alpha2.Edged) api.Settings {
	kubelet := &own.TailoredKubeletConfig
	who, may := &kubelet.Authentication, &kubelet.Authorization
	o := api.Settings{
		TLS:       server.TLSOptions{MinVersion: kubelet.TLSMinVersion, CipherSuites: kubelet.TLSCipherSuites},
		CertFile:  kubelet.TLSCertFile,
		KeyFile:   kubelet.TLSPrivateKeyFile,
		Bootstrap: kubelet.ServerTLSBootstrap,
		ClientCA:  who.X509.ClientCAFile,
		Auth: auth.Options{
			Anonymous: ptr.Deref(who.Anonymous.Enabled, false),
			Tokens:    ptr.Deref(who.Webhook.Enabled, true), TokenAge: who.Webhook.CacheTTL.Duration,
			AlwaysAllow: may.Mode == kubeletconfig.KubeletAuthorizationModeAlwaysAllow,
			AllowedAge:  may.Webhook.CacheAuthorizedTTL.Duration, DeniedAge: may.Webhook.CacheUnauthorizedTTL.Duration,
		},
		Debugging:  ptr.Deref(kubelet.EnableDebuggingHandlers, true),
		Profiling:  ptr.Deref(kubelet.EnableProfilingHandler, true),
		Flags:      ptr.Deref(kubelet.EnableDebugFlagsHandler, true),
		SystemLogs: ptr.Deref(kubelet.EnableSystemLogHandler, true),
	}
	if ptr.Deref(kubelet.EnableServer, true) {
		o.Port = kubelet.Port
		o.Listen = options.ListenAddress(apiAddress(own), kubelet.Port)
	}
	return o
}

// apiAddress is where the authenticated port listens: at serverAddress, else at the configured address, or at all
// addresses if that is a loopback address. It says where the read-only port is to be kept, and all files of KubeEdge
// say it; the cluster has to reach the other port, which lets in only whom it knows.
func apiAddress(own *v1alpha2.Edged) string {
	if own.ServerAddress != "" {
		return own.ServerAddress
	}
	address := own.TailoredKubeletConfig.Address
	if ip := net.ParseIP(address); ip != nil && ip.IsLoopback() {
		return ""
	}
	return address
}

// KubeletAPI returns the address at which this device itself reaches the authenticated port; "" where there is none.
func KubeletAPI(cfg *v1alpha2.EdgeCore) string {
	own := &cfg.Modules.Edged
	if !own.Enable || !ptr.Deref(own.TailoredKubeletConfig.EnableServer, true) {
		return ""
	}
	host, port, err := net.SplitHostPort(options.ListenAddress(apiAddress(own), own.TailoredKubeletConfig.Port))
	if err != nil {
		return "" // the port is 0
	}
	switch ip := net.ParseIP(host); {
	case host == "", ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

// ShownConfig returns the function for what /configz shows: the configuration without its secrets.
func ShownConfig(cfg *v1alpha2.EdgeCore) func() any {
	return func() any { return cfg.Redacted().Modules.Edged.TailoredKubeletConfig }
}
