package conformance

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// pullRows are about images that come from a registry.
func pullRows() []row {
	return []row{
		{
			name: "image-pull-secret",
			spec: `
imagePullSecrets: [{name: pull-nowhere}]
containers: [{name: main}]
`,
			check: func(p *pod) {
				p.event("FailedToRetrieveImagePullSecret", "pull-nowhere")
				p.running() // its image is here

				image := p.registry("reader", "sesame")
				_, err := p.node.api.CoreV1().Secrets(p.node.name).Create(p.Context(), &v1.Secret{
					ObjectMeta: metav1.ObjectMeta{Name: "pull-here"}, Type: v1.SecretTypeDockerConfigJson,
					Data: map[string][]byte{
						v1.DockerConfigJsonKey: fmt.Appendf(nil,
							`{"auths":{%q:{"username":"reader","password":"sesame"}}}`, strings.Split(image, "/")[0]),
					},
				}, metav1.CreateOptions{})
				env.Must(p, err)
				spec := v1.PodSpec{
					Containers: []v1.Container{{Name: "main", Image: image, Command: []string{"sh", "-c", forever}}},
				}
				without := p.node.create(p.T, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "image-pull-without"},
					Spec: *spec.DeepCopy()})
				without.event("Failed", "Failed to pull image")
				without.waits("main", "ImagePullBackOff", image)
				without.delete()
				spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "pull-here"}}
				with := p.node.create(p.T, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "image-pull-with"}, Spec: spec})
				with.running()
				with.event("Pulled", "Successfully pulled image")

				// It is here now: who has the credentials may use it as it is, and who has none may not.
				again := p.node.create(p.T, &v1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "image-pull-again"}, Spec: spec,
				})
				again.event("Pulled", "already present on machine and can be accessed by the pod")
				again.delete()
				spec.ImagePullSecrets = nil
				stranger := p.node.create(p.T, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "image-pull-stranger"},
					Spec: *spec.DeepCopy()})
				stranger.event("Failed", "Failed to pull image")
				stranger.delete()
				spec.Containers[0].ImagePullPolicy = v1.PullNever
				never := p.node.create(p.T, &v1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "image-pull-never"}, Spec: spec,
				})
				never.event("ErrImageNeverPull", "is not present with pull policy of Never")
				never.delete()
				with.delete()
			},
		},
	}
}

// registry serves the demo image to those who know a user and a password, and returns its name.
func (p *pod) registry(user, password string) string {
	p.Helper()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, pw, ok := r.BasicAuth(); !ok || u != user || pw != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	}))
	p.Cleanup(server.Close)
	archive, err := images.Archive(p.Context())
	env.Must(p, err)
	tag, err := name.NewTag(images.Demo)
	env.Must(p, err)
	demo, err := tarball.ImageFromPath(archive, &tag)
	env.Must(p, err)
	// The runtime keeps an image by its name: each node's own.
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/"+p.node.name+":1", name.Insecure)
	env.Must(p, err)
	env.Must(p, remote.Write(ref, demo, remote.WithAuth(&authn.Basic{Username: user, Password: password})))
	return ref.String()
}
