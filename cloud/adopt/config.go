package adopt

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/yamlbound"
)

// configKey is the key of the file in the ConfigMap, the same for both cloudcores.
const configKey = "cloudcore.yaml"

// config is what KubeEdge's configuration file says.
type config struct {
	*v1alpha1.CloudCore
	// tree is the file.
	tree map[string]any
	// warnings name what edgecore's cloudcore does not act on.
	warnings []string
}

// parseConfig reads KubeEdge's file. Empty entries of lists, which KubeEdge's chart and its cloudcore write for values
// without an address, are left out.
func parseConfig(text string) (*config, error) {
	if err := yamlbound.Check([]byte(text), strict.MaxFile); err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return nil, err
	}
	addresses := texts(strict.At(tree, "modules", "cloudHub", "advertiseAddress"))
	names := texts(strict.At(tree, "modules", "cloudHub", "dnsNames"))
	if hub, ok := strict.At(tree, "modules", "cloudHub").(map[string]any); ok {
		// An empty address is not valid, and neither is an empty list of them. Names may be empty.
		if dropEmpty(hub, "advertiseAddress") {
			data, err := yaml.Marshal(tree)
			if err != nil {
				return nil, err
			}
			text = string(data)
		}
	}
	parsed, warnings, err := v1alpha1.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	// the default is an address of the machine that this runs on
	parsed.Modules.CloudHub.AdvertiseAddress, parsed.Modules.CloudHub.DNSNames = addresses, names
	return &config{parsed, tree, warnings}, nil
}

// dropEmpty removes the empty entries of a list in a mapping, and the list if none is left. It reports whether it has
// changed anything.
func dropEmpty(m map[string]any, key string) bool {
	list, ok := m[key].([]any)
	kept := slices.DeleteFunc(slices.Clone(list), func(v any) bool { return v == nil || v == "" })
	switch {
	case !ok, len(kept) == len(list) && len(list) > 0:
		return false
	case len(kept) == 0:
		delete(m, key)
	default:
		m[key] = kept
	}
	return true
}

// texts returns the texts in a list that are not empty.
func texts(list any) []string {
	out := []string{}
	entries, _ := list.([]any)
	for _, entry := range entries {
		if s, _ := entry.(string); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// carried reports whether the value of a key that edgecore's cloudcore acts on is kept as it is. The other keys have
// paths in the pod of KubeEdge's cloudcore, belong to the manifest, or are written by merge itself.
func carried(key string) bool {
	for _, other := range []string{
		"apiVersion", "kind", "commonConfig.monitorServer.", "kubeAPIConfig.kubeConfig", "modules.cloudHub.unixsocket.",
		"modules.cloudHub.advertiseAddress", "modules.cloudHub.dnsNames",
	} {
		if key == other || strings.HasSuffix(other, ".") && strings.HasPrefix(key, other) {
			return false
		}
	}
	name, inHub := strings.CutPrefix(key, "modules.cloudHub.")
	return !inHub || !slices.Contains(certificateKeys(), name)
}

func certificateKeys() []string {
	return []string{"tlsCAFile", "tlsCAKeyFile", "tlsCertFile", "tlsPrivateKeyFile"}
}

// merge returns the file of edgecore's manifests with the values of KubeEdge's.
func (c *config) merge(manifest string, addresses, dnsNames []string) (string, error) {
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(manifest), &out); err != nil {
		return "", err
	}
	for _, key := range v1alpha1.LiveKeys() {
		path := strict.Split(key)
		if value := strict.At(c.tree, path...); value != nil && value != "" && carried(key) {
			set(out, value, path...)
		}
	}
	set(out, addresses, "modules", "cloudHub", "advertiseAddress")
	set(out, dnsNames, "modules", "cloudHub", "dnsNames")
	data, err := yaml.Marshal(out)
	if err != nil {
		return "", err
	}
	if _, _, err := v1alpha1.Parse(data); err != nil {
		return "", err
	}
	const head = "# Written by cloudcore adopt, with the values of KubeEdge's file.\n"
	return head + string(data), nil
}

// set sets a value in a tree.
func set(tree map[string]any, value any, path ...string) {
	for _, key := range path[:len(path)-1] {
		next, ok := tree[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			tree[key] = next
		}
		tree = next
	}
	tree[path[len(path)-1]] = value
}

// port is one at which cloudcore listens.
type port struct {
	// name is that in edgecore's manifests.
	name, protocol string
	number         int32
	enabled        bool
}

// ports are those that devices reach, with the names of edgecore's manifests.
func (c *config) ports() []port {
	hub, stream := &c.Modules.CloudHub, &c.Modules.CloudStream
	return []port{
		{"hub", "TCP", hub.WebSocket.Port, hub.WebSocket.Enable},
		{"hub-quic", "UDP", hub.Quic.Port, hub.Quic.Enable},
		{"join", "TCP", hub.HTTPS.Port, hub.HTTPS.Enable},
		{"stream", "TCP", stream.TunnelPort, stream.Enable},
	}
}

// lostSettings are the settings of the file that edgecore's pod cannot have, besides what is warned of.
func (c *config) lostSettings() []string {
	var out []string
	for _, w := range c.warnings {
		if !strings.Contains(w, "is read as") {
			out = append(out, w)
		}
	}
	if c.Modules.CloudHub.UnixSocket.Enable && strict.Has(c.tree, "modules", "cloudHub", "unixsocket", "enable") {
		out = append(out, "modules.cloudHub.unixsocket: off; a CSI driver on cloudcore's host cannot use it, because "+
			"the pod has no folder of the host")
	}
	if bind := c.CommonConfig.MonitorServer.BindAddress; strict.Has(c.tree, "commonConfig", "monitorServer",
		"bindAddress") && bind != v1alpha1.DefaultMonitorBind {
		out = append(out, fmt.Sprintf("commonConfig.monitorServer.bindAddress: %s is left out, because the probes "+
			"need that of the manifests", bind))
	}
	return out
}
