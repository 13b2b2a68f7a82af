// Package join connects a device to a cloud: it computes the configuration of a joining node, and gets the node's
// certificate.
package join

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/pkg/setflag"
)

const (
	webSocketPort, quicPort = "10000", 10001

	// edgeTaint is the key of the taint that KubeSphere gives edge nodes.
	edgeTaint = "node-role.kubernetes.io/edge"

	configHead = `# edgecore's configuration, made by ` + "`edgecore join`" +
		`. Each key that is left out has its default
# (` + "`edgecore --defaultconfig`" + ` prints them); keys that you set here stay when the device joins again.
`
)

// Request holds a command line's changes to the configuration. Empty fields change nothing.
type Request struct {
	// Host and Port are the link's.
	Host, Port string
	// CertPort is the cloud's port for certificates, QUICPort that of the link over QUIC, and TunnelPort that of the
	// streams to KubeEdge's cloudcore. The last two may be 0.
	CertPort, QUICPort, TunnelPort int
	// Node is the node's name, CertPath the folder of its certificates.
	Node, CertPath string
	// NodeIP is the node's address, Interface the network interface that has it.
	NodeIP, Interface string
	// EdgeTaint adds the taint node-role.kubernetes.io/edge:NoSchedule to the ones that the node registers with.
	EdgeTaint bool
	// CgroupDriver and Runtime are the container runtime's, the second one its socket.
	CgroupDriver, Runtime string
	// Labels and Sets are KEY=VALUE; the keys of Sets are configuration keys such as modules.edged.nodeIP.
	Labels, Sets []string
	// Protocol is websocket or quic.
	Protocol string
}

// ParseServer reads HOST:PORT; the port may be missing.
func ParseServer(text string) (host, port string, _ error) {
	bad := fmt.Errorf("--cloudcore-ipport %q: want HOST:PORT, such as 192.0.2.1:10000 or [2001:db8::1]:10000", text)
	if strings.Contains(text, "/") {
		return "", "", bad
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		var missing *net.AddrError
		if !errors.As(err, &missing) || missing.Err != "missing port in address" {
			return "", "", bad
		}
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), webSocketPort
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || n == 0 || strings.ContainsAny(host, " @") {
		return "", "", bad
	}
	return host, port, nil
}

// setting is a key of the configuration file, below the keys at, and its value.
type setting struct {
	at    []string
	key   string
	value any
}

// apply applies the request to the tree of a configuration file; path is for errors.
func (r *Request) apply(path string, tree map[string]any) error {
	tree["apiVersion"], tree["kind"] = v1alpha2.APIVersion, v1alpha2.Kind
	edged, err := r.edgedSettings(tree)
	if err != nil {
		return err
	}
	for _, s := range append(r.cloudSettings(), edged...) {
		if err := setflag.Set(tree, append(append([]string(nil), s.at...), s.key), s.value); err != nil {
			return fmt.Errorf("configuration %s: %w", path, err)
		}
	}
	for _, set := range r.Sets {
		if err := setflag.Apply(tree, set); err != nil {
			return err
		}
	}
	// The join uses up a token in the file.
	if m, ok := tree["modules"].(map[string]any)["edgeHub"].(map[string]any); ok {
		delete(m, "token")
	}
	return nil
}

// cloudSettings are those of the way to the cloud.
func (r *Request) cloudSettings() []setting {
	hub := []string{"modules", "edgeHub"}
	websocket, quic := []string{"modules", "edgeHub", "websocket"}, []string{"modules", "edgeHub", "quic"}
	at := func(port int) string { return net.JoinHostPort(r.Host, strconv.Itoa(port)) }
	settings := []setting{
		{hub, "enable", true},
		{hub, "httpServer", "https://" + at(r.CertPort)},
		{websocket, "server", net.JoinHostPort(r.Host, r.Port)},
		{quic, "server", at(cmp.Or(r.QUICPort, quicPort))},
	}
	if r.TunnelPort != 0 {
		settings = append(settings, setting{[]string{"modules", "edgeStream"}, "server", at(r.TunnelPort)})
	}
	if r.Protocol != "" {
		settings = append(settings, setting{websocket, "enable", r.Protocol != "quic"},
			setting{quic, "enable", r.Protocol == "quic"})
	}
	if r.CertPath != "" {
		f := FilesIn(r.CertPath)
		settings = append(settings, setting{hub, "tlsCaFile", f.CA}, setting{hub, "tlsCertFile", f.Cert},
			setting{hub, "tlsPrivateKeyFile", f.Key})
	}
	return settings
}

// edgedSettings are those of the node. tree is the file before.
func (r *Request) edgedSettings(tree map[string]any) ([]setting, error) {
	edged, labels := []string{"modules", "edged"}, []string{"modules", "edged", "nodeLabels"}
	kubelet := []string{"modules", "edged", "tailoredKubeletConfig"}
	var settings []setting
	for _, s := range []setting{
		{edged, "hostnameOverride", r.Node},
		{edged, "nodeIP", r.NodeIP},
		{edged, "customInterfaceName", r.Interface},
		{kubelet, "cgroupDriver", r.CgroupDriver},
		{kubelet, "containerRuntimeEndpoint", r.Runtime},
	} {
		if s.value != "" {
			settings = append(settings, s)
		}
	}
	if r.EdgeTaint {
		settings = append(settings, setting{kubelet, "registerWithTaints", withEdgeTaint(tree)})
	}
	for _, label := range r.Labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return nil, fmt.Errorf("--labels %s: want KEY=VALUE,KEY=VALUE", label)
		}
		settings = append(settings, setting{labels, key, value})
	}
	return settings, nil
}

// withEdgeTaint returns the taints of a configuration file, and the one for edge nodes.
func withEdgeTaint(tree map[string]any) []any {
	at := tree
	for _, key := range []string{"modules", "edged", "tailoredKubeletConfig"} {
		at, _ = at[key].(map[string]any)
	}
	taints, _ := at["registerWithTaints"].([]any)
	for _, t := range taints {
		if taint, ok := t.(map[string]any); ok && taint["key"] == edgeTaint && taint["effect"] == "NoSchedule" {
			return taints
		}
	}
	return append(taints, map[string]any{"key": edgeTaint, "effect": "NoSchedule"})
}

// FilesIn returns the certificate files in a folder.
func FilesIn(dir string) certs.Files {
	return certs.Files{
		CA: filepath.Join(dir, "rootCA.crt"), Cert: filepath.Join(dir, "server.crt"),
		Key: filepath.Join(dir, "server.key"),
	}
}

// FilesOf returns the certificate files of a configuration.
func FilesOf(cfg *v1alpha2.EdgeCore) certs.Files {
	h := &cfg.Modules.EdgeHub
	return certs.Files{CA: h.TLSCAFile, Cert: h.TLSCertFile, Key: h.TLSPrivateKeyFile}
}

// Plan is a configuration that is ready to be written.
type Plan struct {
	Config   *v1alpha2.EdgeCore
	Warnings []string
	text     []byte
	// old is the file's content now; nil if there is none.
	old []byte
}

// Plan checks the request, completes it, and works out the configuration at a path; see makePlan. server is the cloud,
// HOST:PORT. A token for one node names the node of a device that has no configuration yet; token may be nil.
func (r *Request) Plan(server, path string, fresh []byte, token *certs.Token) (*Plan, error) {
	if server == "" {
		return nil, errors.New("--cloudcore-ipport HOST:PORT is missing: where is the cloud?")
	}
	var err error
	if r.Host, r.Port, err = ParseServer(server); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		flag      string
		port, min int
	}{{"certport", r.CertPort, 1}, {"quicport", r.QUICPort, 0}, {"tunnelport", r.TunnelPort, 0}} {
		if p.port < p.min || p.port > 65535 {
			return nil, fmt.Errorf("--%s %d: want 1 to 65535", p.flag, p.port)
		}
	}
	if r.Protocol != "" && r.Protocol != "websocket" && r.Protocol != "quic" {
		return nil, fmt.Errorf("--hub-protocol %s: want websocket or quic", r.Protocol)
	}
	if r.Node == "" && token != nil && token.Claims.Node != "" {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			r.Node = token.Claims.Node
		}
	}
	return makePlan(path, fresh, r)
}

// makePlan works out the configuration at a path and checks it; it writes nothing. fresh is the content that a new file
// begins with.
func makePlan(path string, fresh []byte, r *Request) (*Plan, error) {
	p := &Plan{}
	tree := map[string]any{}
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := yaml.Unmarshal(fresh, &tree); err != nil {
			return nil, fmt.Errorf("the configuration that the package brings: %w", err)
		}
	case err != nil:
		return nil, fmt.Errorf("configuration: %w", err)
	default:
		if _, _, err := v1alpha2.Load(path); err != nil {
			return nil, fmt.Errorf("%w\ncorrect the file, or move it away, and join again", err)
		}
		if err := yaml.Unmarshal(old, &tree); err != nil {
			return nil, fmt.Errorf("configuration %s: %w", path, err)
		}
		p.old = old
	}
	if err := r.apply(path, tree); err != nil {
		return nil, err
	}
	if err := p.check(tree); err != nil {
		return nil, err
	}
	// The name is written to the file: the certificate is for it, and the host may be renamed.
	if err := setflag.Set(tree, []string{"modules", "edged", "hostnameOverride"},
		p.Config.Modules.Edged.HostnameOverride); err != nil {
		return nil, err
	}
	body, err := yaml.Marshal(tree)
	if err != nil {
		return nil, err
	}
	p.text = append([]byte(configHead), body...)
	if sameConfig(old, body) {
		p.text = old // with its comments
	}
	return p, nil
}

func (p *Plan) check(tree map[string]any) error {
	body, err := yaml.Marshal(tree)
	if err != nil {
		return err
	}
	if p.Config, p.Warnings, err = v1alpha2.Parse(body); err != nil {
		var problems v1alpha2.Problems
		if errors.As(err, &problems) {
			for i := range problems {
				problems[i].Line = 0 // of a file that nobody has seen
			}
		}
		return fmt.Errorf("the flags of this command result in an invalid configuration: %w", err)
	}
	for i, w := range p.Warnings {
		if rest, ok := strings.CutPrefix(w, "line "); ok {
			_, p.Warnings[i], _ = strings.Cut(rest, ": ")
		}
	}
	return nil
}

// sameConfig reports whether two files have the same configuration.
func sameConfig(a, b []byte) bool {
	x, errX := yaml.YAMLToJSON(a)
	y, errY := yaml.YAMLToJSON(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// Write writes the file if its content changes, and keeps the previous one as a copy. It returns a sentence that says
// what it did.
//
// The certificates are new, too, so the agent does not go back to a configuration before.
func (p *Plan) Write(path string) (string, error) {
	if cfg, _, err := v1alpha2.Parse(p.text); err == nil {
		if err := configfile.CopiesOf(path, cfg.Database.DataSource).Forget(); err != nil {
			return "", err
		}
	}
	if p.old != nil && bytes.Equal(p.old, p.text) {
		return "Configuration " + path + " is as it should be", nil
	}
	if p.old == nil {
		return "Wrote configuration " + path, certs.WriteFile(path, p.text)
	}
	if err := certs.WriteFile(path+".bak", p.old); err != nil {
		return "", err
	}
	return "Changed configuration " + path + " (the one before is " + path + ".bak)", certs.WriteFile(path, p.text)
}
