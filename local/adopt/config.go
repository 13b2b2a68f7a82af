package adopt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/yamlbound"
)

// Paths are what this agent has for itself; all else it shares with the one before.
type Paths struct {
	// Store is the file of its store, Certs the folder of CA, certificate and key.
	Store, Certs string
	// Root is the folder of the pods' volumes, for a file that does not name it: its default was another before
	// KubeEdge 1.20.
	Root string
	// NodeName is the node's name, for a file that does not say it.
	NodeName string
	// Joined: the other agent has a certificate, so that its token is invalid any more.
	Joined bool
}

// Note is a key of the other agent's configuration, and what becomes of it.
type Note struct{ Key, Text string }

func (n Note) String() string {
	if n.Key == "" {
		return n.Text
	}
	return n.Key + ": " + n.Text
}

// Config is a configuration of this agent.
type Config struct {
	Text []byte
	*v1alpha2.EdgeCore
	// Notes name each key that was left out, or that this version does not act on.
	Notes []Note
}

const configHead = `# edgecore's configuration, made by ` + "`edgecore adopt`" +
	` of that of KubeEdge. Each key that is left out has its
# default (` + "`edgecore --defaultconfig`" + ` prints them).
`

// maxLeftOut bounds the search for a file that passes; a file that is something else altogether has no end of faults.
const maxLeftOut = 200

// Before tells what the other agent's file says itself: where its certificates and its store are. What is wrong with
// other parts of it does not matter.
func Before(text []byte) (*v1alpha2.EdgeCore, error) {
	tree, err := readTree(text)
	if err != nil {
		return nil, err
	}
	c, err := decodeConfig(tree)
	if err != nil {
		return nil, err
	}
	return c.EdgeCore, nil
}

// Translate makes a configuration of the other agent's file. A key that means nothing here is left out and named; a
// value of which pods depend and that is not allowed is an error.
func Translate(text []byte, paths Paths) (*Config, error) {
	tree, err := readTree(text)
	if err != nil {
		return nil, err
	}
	edged, hub := mapping(tree, "modules", "edged"), mapping(tree, "modules", "edgeHub")
	if err := runtimeOf(edged); err != nil {
		return nil, err
	}
	own := func(m map[string]any, key string, value any) {
		if m[key] == nil {
			m[key] = value
		}
	}
	// What KubeEdge does where its file says nothing, and this agent does otherwise.
	own(edged, "reportEvent", false)
	own(edged, "rootDirectory", paths.Root)
	own(edged, "hostnameOverride", paths.NodeName)
	own(mapping(edged, "tailoredKubeletConfig"), "readOnlyPort", 10350)
	mapping(tree, "database")["dataSource"] = paths.Store
	files := CertFiles(paths.Certs)
	hub["tlsCaFile"], hub["tlsCertFile"], hub["tlsPrivateKeyFile"] = files.CA, files.Cert, files.Key
	if hub["token"] != nil && (paths.Joined || hub["token"] == "") {
		delete(hub, "token")
	}
	delete(tree, "edgecoreVersion")   // it was a note of that agent on itself
	delete(edged, "containerRuntime") // which is CRI's, since the other was refused
	c, err := decodeConfig(tree)
	if err != nil {
		return nil, err
	}
	if !c.Modules.Edged.Enable {
		return nil, errors.New("modules.edged.enable is false: that agent ran no pods, and there is nothing to take " +
			"over; `edgecore join` joins a cloud")
	}
	return c, nil
}

func readTree(text []byte) (map[string]any, error) {
	if err := yamlbound.Check(text, strict.MaxFile); err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("it is not a YAML mapping: %w", err)
	}
	if tree == nil {
		tree = map[string]any{}
	}
	return tree, nil
}

// mapping returns the mapping at a path, and makes it where there is none.
func mapping(tree map[string]any, path ...string) map[string]any {
	for _, key := range path {
		next, ok := tree[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			tree[key] = next
		}
		tree = next
	}
	return tree
}

// runtimeOf refuses a container runtime that only a kubelet before Kubernetes 1.24 can drive.
func runtimeOf(edged map[string]any) error {
	name, _ := edged["containerRuntime"].(string)
	endpoint, _ := edged["remoteRuntimeEndpoint"].(string)
	if named, ok := mapping(edged, "tailoredKubeletConfig")["containerRuntimeEndpoint"].(string); ok {
		endpoint = named
	}
	if name == "docker" || strings.Contains(endpoint, "dockershim") {
		return errors.New("its containers are Docker's, driven through dockershim, which no runtime offers any more: " +
			"they cannot be taken over as they run. " +
			"Move the node to containerd or to cri-dockerd with KubeEdge first, or create it again with " +
			"`edgecore join`")
	}
	return nil
}

// decodeConfig parses a tree, and leaves out what does not pass until the rest does.
func decodeConfig(tree map[string]any) (*Config, error) {
	c := &Config{}
	for range maxLeftOut {
		body, err := yaml.Marshal(tree)
		if err != nil {
			return nil, err
		}
		cfg, warnings, err := v1alpha2.Parse(body)
		if err == nil {
			c.EdgeCore, c.Text = cfg, append([]byte(configHead), body...)
			for _, w := range warnings {
				key, text, _ := strings.Cut(withoutLine(w), ": ")
				c.Notes = append(c.Notes, Note{key, text})
			}
			return c, nil
		}
		var problems v1alpha2.Problems
		if !errors.As(err, &problems) {
			return nil, err
		}
		dropped := false
		for _, p := range problems {
			if vital(p.Path) {
				return nil, fmt.Errorf("%s: %s; correct it in the file of KubeEdge and see that its agent still runs",
					p.Path, p.Text)
			}
			if drop(tree, p.Path) {
				dropped = true
				c.Notes = append(c.Notes, Note{p.Path, "left out: " + reason(p.Text)})
			}
		}
		if !dropped {
			return nil, err
		}
	}
	return nil,
		errors.New("too much of it is unknown: it is not a configuration of KubeEdge's edgecore 1.12 to 1.23")
}

// reason is why a key is left out. What it may be a slip for is of no interest: KubeEdge knew it.
func reason(problem string) string {
	if strings.HasPrefix(problem, "no such key") {
		return "this version has no such key"
	}
	return problem
}

// withoutLine removes the line number from a warning: it refers to a generated file that the user never sees.
func withoutLine(text string) string {
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, after, ok := strings.Cut(rest, ": "); ok {
			return after
		}
	}
	return text
}

// vital tells the keys without which the pods that run are not found, or not kept as they are: their default is no
// stand-in for what the file says.
func vital(path string) bool {
	switch path {
	case "apiVersion", "kind", "modules", "modules.edged", "modules.edged.tailoredKubeletConfig",
		"modules.edged.hostnameOverride", "modules.edged.rootDirectory":
		return true
	}
	key, ok := strings.CutPrefix(path, "modules.edged.tailoredKubeletConfig.")
	return ok &&
		slices.Contains([]string{
			"containerRuntimeEndpoint", "cgroupDriver", "cgroupRoot", "cgroupsPerQOS", "staticPodPath", "podLogsDir",
		}, key)
}

// drop removes what a path names from a tree; of a list the whole. Keys may have dots in them, and long ones are
// clipped in paths.
func drop(tree map[string]any, path string) bool {
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		rest, ok := strings.CutPrefix(path, strict.Clip(key))
		if !ok {
			continue
		}
		if rest == "" {
			delete(tree, key)
			return true
		}
		next, isMap := tree[key].(map[string]any)
		switch {
		case strings.HasPrefix(rest, ".") && isMap:
			if drop(next, rest[1:]) {
				return true
			}
		case strings.HasPrefix(rest, "[") && isMap && strings.HasSuffix(rest, "]"):
			if drop(next, rest[1:len(rest)-1]) {
				return true
			}
		case strings.HasPrefix(rest, "["):
			delete(tree, key)
			return true
		}
	}
	return false
}
