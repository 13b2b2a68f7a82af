package v1alpha2

import (
	"crypto/tls"
	"fmt"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// api checks what the configuration says about the authenticated port.
func (c *checker) api(p string, k *kubeletconfig.KubeletConfiguration) {
	if k.Port < 1 || k.Port > 65535 {
		c.Fail(p+".port", k.Port, "a port from 1 to 65535; enableServer: false is none")
	} else if k.Port == k.ReadOnlyPort {
		c.Fail(p+".port", k.Port, "another port than readOnlyPort")
	}
	c.AbsoluteOrNone(p+".tlsCertFile", k.TLSCertFile)
	c.AbsoluteOrNone(p+".tlsPrivateKeyFile", k.TLSPrivateKeyFile)
	if (k.TLSCertFile == "") != (k.TLSPrivateKeyFile == "") {
		c.Fail(p+".tlsCertFile", k.TLSCertFile, "tlsCertFile and tlsPrivateKeyFile together, or neither")
	}
	if k.TLSMinVersion != "" {
		c.OneOf(p+".tlsMinVersion", k.TLSMinVersion, "VersionTLS12", "VersionTLS13")
	}
	var names []string
	for _, s := range tls.CipherSuites() {
		names = append(names, s.Name)
	}
	for i, name := range k.TLSCipherSuites {
		c.OneOf(fmt.Sprintf("%s.tlsCipherSuites[%d]", p, i), name, names...)
	}
	c.AbsoluteOrNone(p+".authentication.x509.clientCAFile", k.Authentication.X509.ClientCAFile)
	c.NotNegative(p+".authentication.webhook.cacheTTL", k.Authentication.Webhook.CacheTTL.Duration)
	c.OneOf(p+".authorization.mode", string(k.Authorization.Mode), "Webhook", "AlwaysAllow")
	c.NotNegative(p+".authorization.webhook.cacheAuthorizedTTL", k.Authorization.Webhook.CacheAuthorizedTTL.Duration)
	c.NotNegative(p+".authorization.webhook.cacheUnauthorizedTTL",
		k.Authorization.Webhook.CacheUnauthorizedTTL.Duration)
}
