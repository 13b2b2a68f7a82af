package v1alpha1

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// maxDays is how many days a certificate or token may last.
const maxDays = 100 * 365

// Validate checks the values and returns everything wrong as strict.Problems. It skips modules that are switched off.
// No value is a secret, except a password in a URL, which is never shown.
func (c *CloudCore) Validate() error {
	k := &checker{}
	(&table{keytable.Table{Pass: keytable.CheckValues, Checker: &k.Checker}}).keys(c, c.Modules.CloudHub.NodeLimit)
	k.cloudHub("modules.cloudHub", &c.Modules.CloudHub)
	if !c.Modules.EdgeController.Enable {
		k.Fail("modules.edgeController.enable", false, "true: without it no object reaches an edge")
	}
	return k.Problems.OrNil()
}

// checkBindAddress checks an address to listen on; an empty host means all addresses.
func checkBindAddress(c *strict.Checker, path, value string) {
	host, _, found := strings.Cut(value, ":")
	if found && host == "" {
		c.HostPort(path, "0.0.0.0"+value)
		return
	}
	c.HostPort(path, value)
}

func checkServerURL(c *strict.Checker, path, value string) {
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		c.Fail(path, value, "the URL of kube-apiserver, such as https://192.0.2.1:6443")
	}
}

func checkAddresses(c *strict.Checker, path string, list []string) {
	for i, a := range list {
		if _, err := netip.ParseAddr(a); err != nil {
			c.Fail(fmt.Sprintf("%s[%d]", path, i), a,
				"an IP address at which edges reach cloudcore; a name belongs in dnsNames")
		}
	}
}

func checkDNSNames(c *strict.Checker, path string, names []string) {
	for i, name := range names {
		if name != "" && len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*."))) > 0 {
			c.Fail(fmt.Sprintf("%s[%d]", path, i), name,
				"a DNS name in lower case, such as cloudcore.example.com; an address belongs in advertiseAddress")
		}
	}
}

func checkSocket(c *strict.Checker, path, value string) { c.Socket(path, value, DefaultUnixSocket) }

// checker checks what several keys say together.
type checker struct{ strict.Checker }

func (k *checker) cloudHub(p string, h *CloudHub) {
	if !h.Enable {
		k.Fail(p+".enable", false, "true: without it no edge reaches the cloud")
		return
	}
	named := slices.ContainsFunc(h.DNSNames, func(name string) bool { return name != "" })
	if len(h.AdvertiseAddress) == 0 && !named {
		k.Fail(p+".advertiseAddress", []string{}, "at least one IP address at which edges reach cloudcore, or a "+
			"name in dnsNames: the certificate is made for them")
	}
	k.pair(p, "tlsCAFile", h.TLSCAFile, "tlsCAKeyFile", h.TLSCAKeyFile)
	k.pair(p, "tlsCertFile", h.TLSCertFile, "tlsPrivateKeyFile", h.TLSPrivateKeyFile)
	if !h.WebSocket.Enable && !h.Quic.Enable {
		k.Fail(p+".websocket.enable", false,
			"true, or quic.enable: true; without one of them no edge reaches the cloud")
	}
	if h.WebSocket.Enable && h.HTTPS.Enable && h.WebSocket.Port == h.HTTPS.Port {
		k.Fail(p+".https.port", h.HTTPS.Port, "another port than websocket.port")
	}
}

// pair checks that a certificate and its key are set both, or neither.
func (k *checker) pair(p, certKey, cert, keyKey, key string) {
	switch {
	case cert == "" && key != "":
		k.Fail(p+"."+certKey, cert, "a path, or none for "+keyKey+" either")
	case cert != "" && key == "":
		k.Fail(p+"."+keyKey, key, "a path, or none for "+certKey+" either")
	}
}
