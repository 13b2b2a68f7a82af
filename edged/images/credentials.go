package images

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// credential is one entry of a docker configuration.
type credential struct {
	// from is the secret that it was in.
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
	return &runtimeapi.AuthConfig{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken}
}

// credentials returns those entries of pull secrets that are for an image, the most specific first. What
// cannot be read is an error beside the others.
func credentials(secrets []v1.Secret, image string) ([]credential, error) {
	var found []credential
	var errs []error
	for i := range secrets {
		entries, err := parseSecret(&secrets[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("secret %s/%s: %w", secrets[i].Namespace, secrets[i].Name, err))
		}
		for _, e := range entries {
			if matches(e.registry, image) {
				e.from = origin{secrets[i].UID, secrets[i].Namespace, secrets[i].Name}
				found = append(found, e)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b credential) int { return len(b.registry) - len(a.registry) })
	return found, errors.Join(errs...)
}

// parseSecret reads the two forms of pull secrets.
func parseSecret(s *v1.Secret) ([]credential, error) {
	entries := map[string]credential{}
	switch {
	case s.Type == v1.SecretTypeDockerConfigJson || len(s.Data[v1.DockerConfigJsonKey]) > 0:
		var doc struct {
			Auths map[string]credential `json:"auths"`
		}
		if err := json.Unmarshal(s.Data[v1.DockerConfigJsonKey], &doc); err != nil {
			return nil, fmt.Errorf("key %s is no docker configuration", v1.DockerConfigJsonKey) // its text is secret
		}
		entries = doc.Auths
	case s.Type == v1.SecretTypeDockercfg || len(s.Data[v1.DockerConfigKey]) > 0:
		if err := json.Unmarshal(s.Data[v1.DockerConfigKey], &entries); err != nil {
			return nil, fmt.Errorf("key %s is no docker configuration", v1.DockerConfigKey)
		}
	default:
		return nil, fmt.Errorf("type %q is no pull secret; want %s", s.Type, v1.SecretTypeDockerConfigJson)
	}
	var list []credential
	for registry, c := range entries {
		if c.Auth != "" && c.Username == "" {
			text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(c.Auth))
			user, password, ok := strings.Cut(string(text), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("entry %q: auth is not base64 of \"user:password\"", registry)
			}
			c.Username, c.Password = user, strings.TrimRight(password, "\x00")
		}
		c.registry, c.Auth = registry, ""
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b credential) int { return strings.Compare(a.registry, b.registry) })
	return list, nil
}

// matches tells whether an entry is for an image: the host part by part with wildcards, the port when the
// entry has one, the path as a prefix.
func matches(registry, image string) bool {
	registry = strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://")
	registry = strings.TrimRight(registry, "/")
	for _, suffix := range []string{"/v1", "/v2"} {
		registry = strings.TrimSuffix(registry, suffix)
	}
	if registry == "index.docker.io" {
		registry = "docker.io"
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return false
	}
	wantHost, wantPath, _ := strings.Cut(registry, "/")
	host, port := splitPort(reference.Domain(named))
	entryHost, entryPort := splitPort(wantHost)
	if entryPort != "" && entryPort != port || (entryPort == "" && port != "") {
		return false
	}
	return hostMatches(entryHost, host) && (wantPath == "" || reference.Path(named) == wantPath || strings.HasPrefix(reference.Path(named), wantPath+"/"))
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
