package v1alpha2

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// Validate checks the values and returns everything wrong as Problems. It skips modules that are switched off.
func (e *EdgeCore) Validate() error {
	c := &checker{strict.Checker{Secrets: secrets()}}
	(&table{keytable.Table{Pass: keytable.CheckValues, Checker: &c.Checker}}).keys(e)
	if e.Modules.Edged.Enable {
		c.kubelet("modules.edged.tailoredKubeletConfig", &e.Modules.Edged.TailoredKubeletConfig)
	}
	c.modules("modules", &e.Modules)
	return c.Problems.OrNil()
}

// checker checks what several keys say together.
type checker struct{ strict.Checker }

func checkQuantity(c *strict.Checker, path, value string) {
	if q, err := resource.ParseQuantity(value); err != nil || q.Sign() < 0 {
		c.Fail(path, value, "a quantity, such as 100m or 64Mi")
	}
}

// checkThreshold checks a quantity or a percentage, as those of evictions are.
func checkThreshold(c *strict.Checker, path, value string) {
	if percent, ok := strings.CutSuffix(value, "%"); ok {
		if p, err := strconv.ParseFloat(percent, 64); err == nil && p >= 0 && p <= 100 {
			return
		}
	} else if q, err := resource.ParseQuantity(value); err == nil && q.Sign() >= 0 {
		return
	}
	c.Fail(path, value, "a quantity such as 100Mi, or a percentage from 0% to 100%")
}

func checkLabels(c *strict.Checker, path string, labels map[string]string) {
	for _, key := range strict.SortedKeys(labels) {
		at := strict.Entry(path, key)
		if len(validation.IsQualifiedName(key)) > 0 {
			c.Fail(at, key, "a label's name: up to 63 letters, digits, '-', '_' and '.', with a DNS domain and '/' "+
				"before it if you like")
		} else if len(validation.IsValidLabelValue(labels[key])) > 0 {
			c.Fail(at, labels[key],
				"a label's value: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends")
		}
	}
}

func checkNodeName(c *strict.Checker, path, value string) {
	if faults := validation.IsDNS1123Subdomain(value); len(faults) > 0 {
		want := "a node's name: up to 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
		if fitting := nodeName(value); fitting != "" {
			want += fmt.Sprintf("; %q would do", fitting)
		}
		c.Fail(path, value, want)
	}
}

func checkNamespace(c *strict.Checker, path, value string) {
	if faults := validation.IsDNS1123Label(value); len(faults) > 0 {
		c.Fail(path, value, "a namespace's name: lower-case letters, digits and '-'")
	}
}

// checkNodeIP accepts one address, or one of each family separated by a comma, like the kubelet.
func checkNodeIP(c *strict.Checker, path, value string) {
	const want = "an IP address, or one of IPv4 and one of IPv6 with a comma between"
	var families []bool
	for _, part := range strings.Split(value, ",") {
		addr, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			c.Fail(path, value, want)
			return
		}
		families = append(families, addr.Is4())
	}
	if len(families) > 2 || len(families) == 2 && families[0] == families[1] {
		c.Fail(path, value, want)
	}
}

// nodeName converts a string to a valid node name; "" if nothing is left.
func nodeName(s string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '-'
	}, strings.ToLower(strict.Clip(s)))
	name = strings.Trim(name, "-.")
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return ""
	}
	return name
}

// broker checks the URL of an MQTT broker. Users and passwords have keys of their own.
func (c *checker) broker(path, value string, schemes ...string) {
	u, err := url.Parse(value)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.Hostname() == "" || u.User != nil {
		c.Fail(path, strict.WithoutPassword(value), "a URL such as "+schemes[0]+"://127.0.0.1:1883, without a user")
	}
}

// openBroker refuses a broker in the agent to which anybody on the network could connect.
func (c *checker) openBroker(p string, b *EventBus) {
	u, err := url.Parse(b.MqttServerInternal)
	if err != nil || u.Hostname() == "localhost" {
		return
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsLoopback() {
		return
	}
	certificates := b.TLS.Enable && b.TLS.TLSMqttCAFile != ""
	if b.MqttUsername == "" && b.MqttPasswordFile == "" && !certificates {
		c.Fail(p+".mqttServerInternal", b.MqttServerInternal, "an address of this device alone, such as "+
			"tcp://127.0.0.1:1883, or a user and password, a password file or client certificates as well: anybody "+
			"who reaches this one could connect")
	}
}

// modules checks what several keys of a module say together.
func (c *checker) modules(p string, m *Modules) {
	if h := &m.EdgeHub; h.Enable {
		switch {
		case h.WebSocket.Enable && h.Quic.Enable:
			c.Fail(p+".edgeHub.quic.enable", true,
				"false, or websocket.enable: false; only one of the two may be on")
		case !h.WebSocket.Enable && !h.Quic.Enable:
			c.Fail(p+".edgeHub.websocket.enable", false, "true, or quic.enable: true; one of the two must be on")
		}
	}
	if b := &m.EventBus; b.Enable {
		if b.MqttMode <= 1 {
			c.broker(p+".eventBus.mqttServerInternal", b.MqttServerInternal, "tcp")
			c.openBroker(p+".eventBus", b)
		}
		if b.MqttMode >= 1 {
			c.broker(p+".eventBus.mqttServerExternal", b.MqttServerExternal, "tcp", "mqtt", "ssl", "tls", "mqtts",
				"tcps")
		}
	}
}
