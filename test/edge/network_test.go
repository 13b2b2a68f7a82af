package edge

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// privateRegistry serves the demo image to clients that know the password, and counts the requests that it refuses.
func privateRegistry(t *testing.T) (ref string, refused *atomic.Int32) {
	t.Helper()
	refused = &atomic.Int32{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "hush" {
			refused.Add(1)
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	archive, err := images.Archive(t.Context())
	env.Must(t, err)
	demo, err := name.NewTag(images.Demo)
	env.Must(t, err)
	img, err := tarball.ImageFromPath(archive, &demo)
	env.Must(t, err)
	ref = strings.TrimPrefix(srv.URL, "http://") + "/team/private:1"
	to, err := name.NewTag(ref)
	env.Must(t, err)
	auth := remote.WithAuth(&authn.Basic{Username: "user", Password: "hush"})
	env.Must(t, remote.Write(to, img, auth, remote.WithContext(t.Context())))
	return ref, refused
}

// TestPrivateRegistry: a pull needs its secret; without it the pod says so, and it heals when the secret comes.
func TestPrivateRegistry(t *testing.T) {
	t.Parallel()
	ref, refused := privateRegistry(t)
	n := newNode(t, env.NodeOptions{})
	n.Manifest("a", strings.Replace(env.Pod("a", env.Forever, "  imagePullSecrets: [{name: reg}]"), images.Demo, ref,
		1))
	n.Until("without the secret", waiting("a", "ImagePullBackOff", "Back-off pulling image"))
	if refused.Load() == 0 {
		t.Error("the registry refused 0 requests, want some")
	}
	host, _, _ := strings.Cut(ref, "/")
	auth := base64.StdEncoding.EncodeToString([]byte("user:hush"))
	n.stored(func(s *store.Store) {
		n.put(s, "default/secret/reg", &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "reg", Namespace: "default"}, Type: v1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{
				v1.DockerConfigJsonKey: []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)),
			},
		})
	})
	n.Running("a")
	out, err := n.Run(t.Context(), "get", "events")
	if want := `Successfully pulled image "` + ref + `" in `; err != nil || !strings.Contains(out, want) {
		t.Errorf("edgecore get events: %v, want an event that says %q:\n%s", err, want, out)
	}
	if strings.Contains(out, "hush") || strings.Contains(out, auth) {
		t.Errorf("events = %s\nwant them without the password", out)
	}
}

// TestHostPortsAndNamespaces: a port of the node leads to the pod, and a pod may live in the node's namespaces.
func TestHostPortsAndNamespaces(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	free, err := daemon.FreePort()
	env.Must(t, err)
	port := strconv.Itoa(free)
	n.Manifest("web", env.Pod("web", "mkdir /tmp/w; echo from the pod > /tmp/w/x; exec httpd -f -p 80 -h /tmp/w")+
		"    ports: [{containerPort: 80, hostPort: "+port+", hostIP: 127.0.0.1}]\n")
	n.Manifest("host", env.Pod("host",
		"echo net $(readlink /proc/self/ns/net) ipc $(readlink /proc/self/ns/ipc) first $(cat /proc/1/comm); "+
			env.Forever,
		"  hostNetwork: true", "  hostPID: true", "  hostIPC: true"))
	pods := n.Running("web", "host")
	wait.Until(t, "the host port", func() error {
		resp, err := http.Get("http://127.0.0.1:" + port + "/x")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "from the pod\n" {
			return fmt.Errorf("the port serves %q, %w", body, err)
		}
		return nil
	})
	if p := pods["host"].Status; p.PodIP == "" || p.PodIP != p.HostIP {
		t.Errorf("pod IP %q and host IP %q of a pod on the node's network, want the same", p.PodIP, p.HostIP)
	}
	want := fmt.Sprintf("net %s ipc %s", namespace(t, "net"), namespace(t, "ipc"))
	wait.Until(t, "the log of the pod on the node's network", func() error {
		if out := n.Logs(pods["host"], "main"); !strings.Contains(out, want) || strings.Contains(out, "first sh") {
			return fmt.Errorf("the pod sees %q, want %q and not itself as the first process", out, want)
		}
		return nil
	})
}

// TestImageByID: a container may name its image by the ID that the runtime gave it, which no registry knows.
func TestImageByID(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	resp, err := n.CRI.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: images.Demo},
	})
	env.Must(t, err)
	id := resp.GetImage().GetId()
	if !strings.HasPrefix(id, "sha256:") {
		t.Fatalf("ID of %s = %q, want a digest", images.Demo, id)
	}
	pod := strings.Replace(env.Pod("by-id", env.Forever), images.Demo, id, 1)
	n.Manifest("by-id", pod)
	n.Manifest("never", strings.NewReplacer("name: by-id", "name: never", "IfNotPresent", "Never").Replace(pod))
	for name, p := range n.Running("by-id", "never") {
		if got := p.Status.ContainerStatuses[0]; got.ImageID != id {
			t.Errorf("pod %s: imageID %q, want %q", name, got.ImageID, id)
		}
	}
}
