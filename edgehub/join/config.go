// Package join connects a device to a cloud: it computes the configuration of a joining node, and gets the node's
// certificate.
package join

import (
	"bytes"
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
	"github.com/edgecore-io/edgecore/pkg/setflag"
)

const (
	webSocketPort, quicPort = "10000", "10001"

	configHead = `# edgecore's configuration, made by ` + "`edgecore join`" +
		`. Each key that is left out has its default
# (` + "`edgecore --defaultconfig`" + ` prints them); keys that you set here stay when the device joins again.
`
)

// Request holds a command line's changes to the configuration. Empty fields change nothing.
type Request struct {
	// Host and Port are the link's.
	Host, Port string
	// CertPort is the cloud's port for certificates.
	CertPort int
	// Node is the node's name, CertPath the folder of its certificates.
	Node, CertPath string
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

// apply applies the request to the tree of a configuration file; path is for errors.
func (r *Request) apply(path string, tree map[string]any) error {
	tree["apiVersion"], tree["kind"] = v1alpha2.APIVersion, v1alpha2.Kind
	hub, edged := []string{"modules", "edgeHub"}, []string{"modules", "edged"}
	type setting struct {
		at    []string
		key   string
		value any
	}
	quic := r.Protocol == "quic"
	settings := []setting{
		{hub, "enable", true},
		{hub, "httpServer", "https://" + net.JoinHostPort(r.Host, strconv.Itoa(r.CertPort))},
		{append(hub, "websocket"), "server", net.JoinHostPort(r.Host, r.Port)},
		{append(hub, "quic"), "server", net.JoinHostPort(r.Host, quicPort)},
	}
	if r.Protocol != "" {
		settings = append(settings, setting{append(hub, "websocket"), "enable", !quic},
			setting{append(hub, "quic"), "enable", quic})
	}
	if r.Node != "" {
		settings = append(settings, setting{edged, "hostnameOverride", r.Node})
	}
	if r.CertPath != "" {
		f := FilesIn(r.CertPath)
		settings = append(settings, setting{hub, "tlsCaFile", f.CA}, setting{hub, "tlsCertFile", f.Cert},
			setting{hub, "tlsPrivateKeyFile", f.Key})
	}
	kubelet := append(edged, "tailoredKubeletConfig")
	if r.CgroupDriver != "" {
		settings = append(settings, setting{kubelet, "cgroupDriver", r.CgroupDriver})
	}
	if r.Runtime != "" {
		settings = append(settings, setting{kubelet, "containerRuntimeEndpoint", r.Runtime})
	}
	for _, label := range r.Labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return fmt.Errorf("--labels %s: want KEY=VALUE,KEY=VALUE", label)
		}
		settings = append(settings, setting{append(edged, "nodeLabels"), key, value})
	}
	for _, s := range settings {
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
	if r.CertPort < 1 || r.CertPort > 65535 {
		return nil, fmt.Errorf("--certport %d: want 1 to 65535", r.CertPort)
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
	if same(old, body) {
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
		return fmt.Errorf("the configuration that this command line makes is wrong: %w", err)
	}
	for i, w := range p.Warnings {
		if rest, ok := strings.CutPrefix(w, "line "); ok {
			_, p.Warnings[i], _ = strings.Cut(rest, ": ")
		}
	}
	return nil
}

// same reports whether two files have the same configuration.
func same(a, b []byte) bool {
	x, errX := yaml.YAMLToJSON(a)
	y, errY := yaml.YAMLToJSON(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// Write writes the file if its content changes, and keeps the previous one as a copy. It returns a sentence that says
// what it did.
func (p *Plan) Write(path string) (string, error) {
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
