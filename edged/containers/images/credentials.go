package images

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/pkg/jsonbound"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// credential is one entry of a docker configuration.
type credential struct {
	// from is the secret that it was in; without a name, it is the node's.
	from origin
	// registry is the key of the entry: host, optional port and path, with wildcards in the host.
	registry      string
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// origin names a secret.
type origin struct {
	UID             types.UID
	Namespace, Name string
}

func (c credential) auth() *runtimeapi.AuthConfig {
	return &runtimeapi.AuthConfig{
		Username:      c.Username,
		Password:      c.Password,
		IdentityToken: c.IdentityToken,
		RegistryToken: c.RegistryToken,
	}
}

// credentials returns those entries of pull secrets that are for an image, the most specific first, and after them
// those of the node. A secret of another type is ignored; a pull secret that cannot be read is an error.
func credentials(secrets []v1.Secret, node []credential, image string) ([]credential, error) {
	var all []credential
	for i := range secrets {
		entries, err := parseSecret(&secrets[i])
		if err != nil {
			return nil, fmt.Errorf("secret %s/%s: %w", secrets[i].Namespace, secrets[i].Name, err)
		}
		for _, e := range entries {
			e.from = origin{secrets[i].UID, secrets[i].Namespace, secrets[i].Name}
			all = append(all, e)
		}
	}
	return slices.Concat(matching(all, image), matching(node, image)), nil
}

// matching are those of some entries that are for an image, the most specific first. Those of Docker Hub by its former
// name are for images of it where no other is.
func matching(entries []credential, image string) []credential {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	var found, hub []credential
	for _, e := range entries {
		switch key := keyOf(e.registry); {
		case matches(key, named):
			found = append(found, e)
		case key == legacyDockerHub:
			hub = append(hub, e)
		}
	}
	if len(found) == 0 && matches("docker.io", named) {
		return hub
	}
	smallsort.SortStableFunc(found, func(a, b credential) int {
		return strings.Compare(keyOf(b.registry), keyOf(a.registry))
	})
	return found
}

// legacyDockerHub is what docker login calls Docker Hub.
const legacyDockerHub = "index.docker.io"

// keyOf is the host and path that an entry is for: without its scheme, and without the version of the API, which docker
// login puts behind the host.
func keyOf(registry string) string {
	registry = strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://")
	host, path, _ := strings.Cut(registry, "/")
	for _, version := range []string{"v1/", "v2/"} {
		if rest, ok := strings.CutPrefix(path, version); ok {
			path = rest
			break
		}
	}
	if path == "" {
		return host
	}
	return host + "/" + path
}

// parseSecret reads the two forms of pull secrets; any other secret has no entries.
func parseSecret(s *v1.Secret) ([]credential, error) {
	switch {
	case s.Type == v1.SecretTypeDockerConfigJson && len(s.Data[v1.DockerConfigJsonKey]) > 0:
		entries, err := parseConfig(s.Data[v1.DockerConfigJsonKey])
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", v1.DockerConfigJsonKey, err)
		}
		return entries, nil
	case s.Type == v1.SecretTypeDockercfg && len(s.Data[v1.DockerConfigKey]) > 0:
		entries, err := parseLegacy(s.Data[v1.DockerConfigKey])
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", v1.DockerConfigKey, err)
		}
		return entries, nil
	}
	return nil, nil
}

// notConfig does not say what stands in the text, which is secret.
const notConfig = "it is not a docker configuration; make it again with docker login or kubectl create secret " +
	"docker-registry"

// maxElements bounds what a docker configuration takes in memory: about 2,000 registries.
const maxElements = 10_000

// maxRegistry is how much of the key of an entry an error shows.
const maxRegistry = 256

// decode reads a docker configuration.
func decode(data []byte, into any) error {
	if jsonbound.HasMore(data, maxElements) {
		return fmt.Errorf("it has more than %d fields; keep the entries that pods on this node need", maxElements)
	}
	if json.Unmarshal(data, into) != nil {
		return errors.New(notConfig)
	}
	return nil
}

// parseConfig reads a config.json.
func parseConfig(data []byte) ([]credential, error) {
	var doc struct {
		Auths map[string]credential `json:"auths"`
	}
	if err := decode(data, &doc); err != nil {
		return nil, err
	}
	return complete(doc.Auths)
}

// parseLegacy reads a .dockercfg, which has nothing but the entries.
func parseLegacy(data []byte) ([]credential, error) {
	var entries map[string]credential
	if err := decode(data, &entries); err != nil {
		return nil, err
	}
	return complete(entries)
}

// complete decodes the auth field of entries, which takes the place of user name and password, and sorts them.
func complete(entries map[string]credential) ([]credential, error) {
	var list []credential
	for _, registry := range slices.Sorted(maps.Keys(entries)) {
		c := entries[registry]
		if c.Auth != "" {
			text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(c.Auth), "="))
			user, password, ok := strings.Cut(string(text), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("entry %.*q: auth is not base64 of \"user:password\"", maxRegistry, registry)
			}
			c.Username, c.Password = user, strings.TrimRight(password, "\x00")
		}
		c.registry, c.Auth = registry, ""
		list = append(list, c)
	}
	return list, nil
}

// matches reports whether an entry is for an image: the host part by part with wildcards, the same port, and the path
// as the beginning of the image's.
func matches(key string, named reference.Named) bool {
	keyHost, keyPath, _ := strings.Cut(key, "/")
	host, port := splitPort(reference.Domain(named))
	entryHost, entryPort := splitPort(keyHost)
	return entryPort == port && hostMatches(entryHost, host) && strings.HasPrefix(reference.Path(named), keyPath)
}

func splitPort(s string) (host, port string) {
	if h, p, err := net.SplitHostPort(s); err == nil {
		return h, p
	}
	return s, ""
}

func hostMatches(pattern, host string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
