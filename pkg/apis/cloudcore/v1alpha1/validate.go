package v1alpha1

import (
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

const (
	maxDays             = 100 * 365
	maxLookupsPerSource = 10000
	maxStatusInterval   = 3600
	maxStatusWrites     = 10000
)

// Validate checks the values and returns everything wrong as strict.Problems. It skips modules that are switched off.
func (c *CloudCore) Validate() error {
	k := &checker{}
	if bind := c.CommonConfig.MonitorServer.BindAddress; bind != "" {
		k.bindAddress("commonConfig.monitorServer.bindAddress", bind)
	}
	k.Within("commonConfig.tunnelPort", int64(c.CommonConfig.TunnelPort), 0, 65535)
	k.kubeAPI("kubeAPIConfig", &c.KubeAPIConfig)
	k.cloudHub("modules.cloudHub", &c.Modules.CloudHub)
	k.modules("modules", &c.Modules)
	return k.Problems.OrNil()
}

// checker collects problems. No value is a secret, except a password in a URL, which is never shown.
type checker struct{ strict.Checker }

// bindAddress checks an address to listen on; an empty host means all addresses.
func (k *checker) bindAddress(path, value string) {
	host, _, found := strings.Cut(value, ":")
	if found && host == "" {
		k.HostPort(path, "0.0.0.0"+value)
		return
	}
	k.HostPort(path, value)
}

func (k *checker) kubeAPI(p string, a *KubeAPIConfig) {
	if a.Master != "" {
		u, err := url.Parse(a.Master)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			k.Fail(p+".master", a.Master, "the URL of kube-apiserver, such as https://192.0.2.1:6443")
		}
	}
	k.AbsoluteOrNone(p+".kubeConfig", a.KubeConfig)
	k.OneOf(p+".contentType", a.ContentType, ContentTypeProtobuf, ContentTypeJSON)
	k.AtLeast(p+".qps", int64(a.QPS), 1)
	k.AtLeast(p+".burst", int64(a.Burst), 1)
}

func (k *checker) cloudHub(p string, h *CloudHub) {
	if !h.Enable {
		k.Fail(p+".enable", false, "true: without it no edge reaches the cloud")
		return
	}
	k.AtLeast(p+".keepaliveInterval", int64(h.KeepaliveInterval), 1)
	k.AtLeast(p+".nodeLimit", int64(h.NodeLimit), 1)
	k.AtLeast(p+".writeTimeout", int64(h.WriteTimeout), 0)
	k.names(p, h)
	for _, f := range []struct{ key, path string }{
		{"tlsCAFile", h.TLSCAFile}, {"tlsCAKeyFile", h.TLSCAKeyFile}, {"tlsCertFile", h.TLSCertFile},
		{"tlsPrivateKeyFile", h.TLSPrivateKeyFile},
	} {
		k.AbsoluteOrNone(p+"."+f.key, f.path)
	}
	k.pair(p, "tlsCAFile", h.TLSCAFile, "tlsCAKeyFile", h.TLSCAKeyFile)
	k.pair(p, "tlsCertFile", h.TLSCertFile, "tlsPrivateKeyFile", h.TLSPrivateKeyFile)
	k.Within(p+".edgeCertSigningDuration", int64(h.EdgeCertSigningDuration), 1, maxDays)
	k.Within(p+".tokenRefreshDuration", int64(h.TokenRefreshDuration), 1, maxDays*24)
	k.Within(p+".lookupsPerSource", int64(h.LookupsPerSource), 1, maxLookupsPerSource)
	k.servers(p, h)
}

// names checks the addresses and names for the server's certificate.
func (k *checker) names(p string, h *CloudHub) {
	named := slices.ContainsFunc(h.DNSNames, func(name string) bool { return name != "" })
	if len(h.AdvertiseAddress) == 0 && !named {
		k.Fail(p+".advertiseAddress", []string{}, "at least one IP address at which edges reach cloudcore, or a "+
			"name in dnsNames: the certificate is made for them")
	}
	for i, a := range h.AdvertiseAddress {
		if _, err := netip.ParseAddr(a); err != nil {
			k.Fail(fmt.Sprintf("%s.advertiseAddress[%d]", p, i), a,
				"an IP address at which edges reach cloudcore; a name belongs in dnsNames")
		}
	}
	for i, name := range h.DNSNames {
		if name != "" && len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*."))) > 0 {
			k.Fail(fmt.Sprintf("%s.dnsNames[%d]", p, i), name,
				"a DNS name in lower case, such as cloudcore.example.com; an address belongs in advertiseAddress")
		}
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

func (k *checker) servers(p string, h *CloudHub) {
	if !h.WebSocket.Enable && !h.Quic.Enable {
		k.Fail(p+".websocket.enable", false,
			"true, or quic.enable: true; without one of them no edge reaches the cloud")
	}
	for _, s := range []struct {
		key string
		*Listener
	}{{"websocket", &h.WebSocket}, {"quic", &h.Quic.Listener}, {"https", &h.HTTPS}} {
		if s.Enable {
			k.Address(p+"."+s.key+".address", s.Address)
			k.Within(p+"."+s.key+".port", int64(s.Port), 1, 65535)
		}
	}
	if h.Quic.Enable {
		k.AtLeast(p+".quic.maxIncomingStreams", int64(h.Quic.MaxIncomingStreams), 1)
	}
	if h.WebSocket.Enable && h.HTTPS.Enable && h.WebSocket.Port == h.HTTPS.Port {
		k.Fail(p+".https.port", h.HTTPS.Port, "another port than websocket.port")
	}
	if h.UnixSocket.Enable {
		k.Socket(p+".unixsocket.address", h.UnixSocket.Address, DefaultUnixSocket)
	}
}

// modules also checks modules that this version may lack: a wrong value is still wrong.
func (k *checker) modules(p string, m *Modules) {
	if d := &m.DeviceController; d.Enable {
		k.Within(p+".deviceController.statusInterval", int64(d.StatusInterval), 1, maxStatusInterval)
		k.Within(p+".deviceController.statusWritesPerNode", int64(d.StatusWritesPerNode), 1, maxStatusWrites)
	}
	if e := &m.EdgeController; !e.Enable {
		k.Fail(p+".edgeController.enable", false, "true: without it no object reaches an edge")
	} else {
		k.AtLeast(p+".edgeController.nodeUpdateFrequency", int64(e.NodeUpdateFrequency), 1)
		k.counts(p+".edgeController.buffer", e.Buffer)
		k.counts(p+".edgeController.load", e.Load)
	}
	if d := &m.DeviceController; d.Enable {
		k.counts(p+".deviceController.buffer", d.Buffer)
		k.counts(p+".deviceController.load", d.Load)
	}
	if t := &m.TaskManager; t.Enable {
		k.counts(p+".taskManager.buffer", t.Buffer)
		k.counts(p+".taskManager.load", t.Load)
	}
	if s := &m.CloudStream; s.Enable {
		k.Within(p+".cloudStream.tunnelPort", int64(s.TunnelPort), 1, 65535)
		k.Within(p+".cloudStream.streamPort", int64(s.StreamPort), 1, 65535)
		k.OneOf(p+".cloudStream.tunnel", s.Tunnel, TunnelAlways, TunnelAuto, TunnelNever)
		k.Within(p+".cloudStream.firstPort", int64(s.FirstPort), 1, 65535)
		k.Within(p+".cloudStream.lastPort", int64(s.LastPort), int64(s.FirstPort), 65535)
		k.Within(p+".cloudStream.streamsPerNode", int64(s.StreamsPerNode), 1, 1024)
		k.AtLeast(p+".cloudStream.bytesPerSecondPerNode", s.BytesPerSecondPerNode, 0)
		if s.Address != "" {
			k.Address(p+".cloudStream.address", s.Address)
		}
		if s.ListenAddress != "" {
			k.Address(p+".cloudStream.listenAddress", s.ListenAddress)
		}
	}
	if r := &m.Router; r.Enable {
		k.Address(p+".router.address", r.Address)
		k.Within(p+".router.port", int64(r.Port), 1, 65535)
		k.AtLeast(p+".router.restTimeout", int64(r.RestTimeout), 1)
	}
	if t := &m.IPTablesManager; t.Enable {
		k.OneOf(p+".iptablesManager.mode", t.Mode, "internal", "external")
	}
}

// counts checks that no length or size in a struct is negative.
func (k *checker) counts(p string, of any) {
	v := reflect.ValueOf(of)
	for i := range v.NumField() {
		k.AtLeast(p+"."+v.Type().Field(i).Tag.Get("json"), v.Field(i).Int(), 0)
	}
}
