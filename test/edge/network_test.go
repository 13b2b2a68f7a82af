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

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// privateRegistry serves the demo image to whoever knows the password, and counts those who do not.
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
	if err != nil {
		t.Fatal(err)
	}
	demo, err := name.NewTag(images.Demo)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, &demo)
	if err != nil {
		t.Fatal(err)
	}
	ref = strings.TrimPrefix(srv.URL, "http://") + "/team/private:1"
	to, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img, remote.WithAuth(&authn.Basic{Username: "user", Password: "hush"}), remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return ref, refused
}

// TestPrivateRegistry: a pull needs its secret; without it the pod says so, and it heals when the secret comes.
func TestPrivateRegistry(t *testing.T) {
	ref, refused := privateRegistry(t)
	n := newNode(t, testenv.Options{}, agent.Options{})
	n.manifest("a.yaml", strings.Replace(pod("a", forever, "  imagePullSecrets: [{name: reg}]"), "edgecore.local/demo:1", ref, 1))
	n.until("without the secret", waits("a", "ImagePullBackOff", "Back-off pulling image"))
	if refused.Load() == 0 {
		t.Error("the registry was not asked")
	}
	host, _, _ := strings.Cut(ref, "/")
	auth := base64.StdEncoding.EncodeToString([]byte("user:hush"))
	n.stored(func(s *store.Store) {
		n.put(s, "default/secret/reg", &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "reg", Namespace: "default"}, Type: v1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth))},
		})
	})
	n.until("with the secret", running("a"))
	out, err := n.Run(t.Context(), "get", "events")
	if err != nil || !strings.Contains(out, `Successfully pulled image "`+ref+`" in `) {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Contains(out, "hush") || strings.Contains(out, auth) {
		t.Error("the events tell the password")
	}
}

// TestHostPortsAndNamespaces: a port of the node leads to the pod, and a pod may live in the node's namespaces.
func TestHostPortsAndNamespaces(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	free, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(free)
	n.manifest("web.yaml", pod("web", "mkdir /tmp/w; echo from the pod > /tmp/w/x; exec httpd -f -p 80 -h /tmp/w")+
		"    ports: [{containerPort: 80, hostPort: "+port+", hostIP: 127.0.0.1}]\n")
	n.manifest("host.yaml", pod("host", "echo net $(readlink /proc/self/ns/net) ipc $(readlink /proc/self/ns/ipc) first $(cat /proc/1/comm); "+forever,
		"  hostNetwork: true", "  hostPID: true", "  hostIPC: true"))
	pods := n.until("both run", running("web", "host"))
	testenv.Poll(t, patience, func() error {
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
		t.Errorf("addresses %q and %q of a pod on the node's network", p.PodIP, p.HostIP)
	}
	want := fmt.Sprintf("net %s ipc %s", namespace(t, "net"), namespace(t, "ipc"))
	testenv.Poll(t, patience, func() error {
		if out := n.logged(pods["host"], "main"); !strings.Contains(out, want) || strings.Contains(out, "first sh") {
			return fmt.Errorf("the pod sees %q, want %q and not itself as the first process", out, want)
		}
		return nil
	})
}
