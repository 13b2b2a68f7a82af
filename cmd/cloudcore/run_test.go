package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgeports"
	"github.com/edgecore-io/edgecore/cloud/kubeapi"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	reliablesyncs "github.com/edgecore-io/edgecore/pkg/apis/reliablesyncs/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/fakemeta"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// freePort is a port of this host that nobody listens on now.
func freePort(t *testing.T) int32 {
	t.Helper()
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return int32(port)
}

// localConfig is the default on free ports of this host, and with no file of the host.
func localConfig(t *testing.T) *v1alpha1.CloudCore {
	cfg := v1alpha1.Default()
	hub := &cfg.Modules.CloudHub
	hub.AdvertiseAddress = []string{"127.0.0.1"}
	hub.TLSCAFile, hub.TLSCAKeyFile, hub.TLSCertFile, hub.TLSPrivateKeyFile = "", "", "", ""
	for _, l := range []*v1alpha1.Listener{&hub.WebSocket, &hub.HTTPS} {
		l.Address, l.Port = "127.0.0.1", freePort(t)
	}
	hub.Quic.Enable, hub.Quic.Address, hub.Quic.Port = true, "127.0.0.1", freePort(t)
	hub.UnixSocket.Address = "unix://" + t.TempDir() + "/hub.sock"
	stream := &cfg.Modules.CloudStream
	stream.TunnelPort, stream.FirstPort, stream.ListenAddress = freePort(t), freePort(t), "127.0.0.1"
	stream.LastPort = stream.FirstPort // none of these tests has two nodes with a tunnel
	cfg.CommonConfig.MonitorServer.BindAddress = edgeports.Address(&v1alpha1.Listener{
		Address: "127.0.0.1", Port: freePort(t),
	})
	return cfg
}

// get returns the status and the text of an answer; 0 when there is none.
func get(t *testing.T, client *http.Client, url string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

// started runs cloudcore and returns how it ends, once it is ready. A cloudcore that cannot start fails the test at
// once.
func started(ctx context.Context, t *testing.T, cfg *v1alpha1.CloudCore, api *kubeapi.Server) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, api) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	wait.True(t, "readyz", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("cloudcore ended with %v before it was ready, want it to run", err)
		default:
		}
		status, _ := get(t, client, "http://"+cfg.CommonConfig.MonitorServer.BindAddress+"/readyz")
		return status == http.StatusOK
	})
	return ended
}

// fakeAPI is an API server that holds objects and lets everybody do everything.
func fakeAPI(objects ...runtime.Object) *kubeapi.Server {
	client := fake.NewClientset(objects...)
	return &kubeapi.Server{
		Client: client,
		CA:     []byte("the CA"),
		Health: apihealth.New(),
		Objects: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{
				reliablesyncs.ObjectSyncs: "ObjectSyncList", reliablesyncs.ClusterObjectSyncs: "ClusterObjectSyncList",
				devices.Devices: "DeviceList", devices.DeviceModels: "DeviceModelList",
			}),
		Connect: func(context.Context) (impersonate.Clients, error) {
			return impersonate.Clients{Own: client, AsNode: client, Metadata: fakemeta.Of(client)}, nil
		},
	}
}

// joined returns what an edge has after it joined through the HTTPS endpoints: its certificate and the CA.
func joined(t *testing.T, url string, api *kubeapi.Server, node string) *tls.Config {
	t.Helper()
	secret, err := api.Client.CoreV1().Secrets(certificates.Namespace).Get(t.Context(), "tokensecret",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := certs.ParseToken(string(secret.Data["tokendata"]))
	if err != nil {
		t.Fatal(err)
	}
	insecure := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	_, der := get(t, insecure, url+"/ca.crt")
	ca, err := x509.ParseCertificate(der)
	if err != nil || !token.SignedBy(der) {
		t.Fatalf("ca.crt: %v, signed the token: %v; want no error, true", err, token.SignedBy(der))
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewRequest(node, key)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/edge.crt", bytes.NewReader(csr))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + token.Bearer}, "Nodename": {node}}
	trusting := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: certs.Pool(ca)}},
	}
	res, err := trusting.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	cert, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("edge.crt: %s %q, %v; want %d", res.Status, cert, err, http.StatusOK)
	}
	return &tls.Config{
		RootCAs: certs.Pool(ca), Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}},
	}
}

// TestServe: all parts come up on an API server; an edge joins, connects, and gets what is bound to it; at the end it
// is told so, and nothing stays.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := localConfig(t)
	api := fakeAPI(&v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{
			Namespace:       "default",
			Name:            "web",
			UID:             "u1",
			ResourceVersion: "7",
		},
		Spec: v1.PodSpec{NodeName: "edge1"},
	})
	result := started(ctx, t, cfg, api)
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	monitor := "http://" + cfg.CommonConfig.MonitorServer.BindAddress
	_, text := get(t, plain, monitor+"/readyz?verbose")
	want := "[+]kube-apiserver ok\n[+]api-access ok\n[+]certificates ok\n" +
		"[+]edgecontroller ok\n[+]cloudhub ok\nreadyz check passed\n"
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("readyz (-want +got):\n%s", diff)
	}

	identity := joined(t, "https://"+edgeports.Address(&cfg.Modules.CloudHub.HTTPS), api, "edge1")
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "edge1", UID: "n1", Labels: map[string]string{marks.EdgeLabel: ""},
		},
	}
	if _, err := api.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	conn, err := wire.DialWebSocket(ctx, wire.DialOptions{
		URL: "wss://" + edgeports.Address(&cfg.Modules.CloudHub.WebSocket) + "/p/edge1/events", TLS: identity,
		Header: http.Header{wire.HeaderNodeID: {"edge1"}, wire.HeaderUse: {wire.UseMessages}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(wire.CloseGoingAway, "")
	m, err := conn.Read()
	for err == nil && m.Route.Resource != "default/pod/web" { // its Node comes first
		if err = conn.Write(m.Respond(json.RawMessage(`"OK"`))); err == nil {
			m, err = conn.Read()
		}
	}
	if err != nil || m.Route.Operation != "insert" {
		t.Fatalf("got %+v, %v; want the pod", m, err)
	}
	if err := conn.Write(m.Respond(json.RawMessage(`"OK"`))); err != nil {
		t.Error(err)
	}
	wait.True(t, "the record of what the edge acked", func() bool {
		sync, err := api.Objects.Resource(reliablesyncs.ObjectSyncs).Namespace("default").Get(ctx, "edge1.u1",
			metav1.GetOptions{})
		if err != nil {
			return false
		}
		rv, _, _ := unstructured.NestedString(sync.Object, "status", "objectResourceVersion")
		return rv == "7"
	})
	quic, err := wire.DialQUIC(ctx, wire.DialOptions{
		URL:    "https://" + edgeports.Address(&cfg.Modules.CloudHub.Quic.Listener),
		TLS:    joined(t, "https://"+edgeports.Address(&cfg.Modules.CloudHub.HTTPS), api, "edge2"),
		Header: http.Header{wire.HeaderNodeID: {"edge2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer quic.Close(wire.CloseGoingAway, "")
	wait.True(t, "both nodes in the metrics", func() bool {
		_, text := get(t, plain, monitor+"/metrics")
		return strings.Contains(string(text), "\nKubeEdge_CloudHub_connected_nodes 2\n")
	})

	cancel()
	for _, link := range []wire.Conn{conn, quic} {
		for err = nil; err == nil; {
			_, err = link.Read()
		}
		var closed *wire.Closed
		if !errors.As(err, &closed) || closed.Code != wire.CloseGoingAway || closed.Reason != "cloudcore stops" {
			t.Errorf("over %s the edge was told %v, want code %d and that cloudcore stops", link.Protocol(), err,
				wire.CloseGoingAway)
		}
	}
	if err := wait.Receive(t, "the end of cloudcore", result); err != nil {
		t.Errorf("ended with %v, want no error", err)
	}
	if status, _ := get(t, plain, monitor+"/healthz"); status != 0 {
		t.Errorf("the monitor server still answers with status %d, want no answer", status)
	}
}

// TestServeEndsEarly: cloudcore can be ended while it waits for kube-apiserver, and while it reads its objects.
func TestServeEndsEarly(t *testing.T) {
	for name, prepare := range map[string]func(*fake.Clientset){
		"no API server": func(c *fake.Clientset) {
			c.PrependReactor("*", "*", func(clientgotesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("connection refused")
			})
		},
		"no lists": func(c *fake.Clientset) {
			c.PrependReactor("list", "*", func(clientgotesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("connection refused")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg := localConfig(t)
			api := fakeAPI()
			prepare(api.Client.(*fake.Clientset))
			result := make(chan error, 1)
			go func() { result <- serve(ctx, cfg, api) }()
			plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			monitor := "http://" + cfg.CommonConfig.MonitorServer.BindAddress
			wait.True(t, "a part that starts", func() bool {
				status, text := get(t, plain, monitor+"/readyz?verbose")
				starting := name == "no lists" &&
					strings.Contains(string(text), "[+]certificates ok\n[-]edgecontroller failed: starting\n") ||
					name == "no API server" &&
						strings.Contains(string(text), "[-]kube-apiserver failed: starting: connection refused\n")
				return status == http.StatusServiceUnavailable && starting
			})
			if status, text := get(t, plain, monitor+"/healthz"); status != http.StatusOK {
				t.Errorf("healthz: %d %s, want %d", status, text, http.StatusOK)
			}
			cancel()
			if err := wait.Receive(t, "the end of cloudcore", result); err != nil {
				t.Errorf("ended with %v, want no error", err)
			}
		})
	}
}

// TestServePortInUse: a port that is taken ends cloudcore with a sentence, and everything that was started with it.
func TestServePortInUse(t *testing.T) {
	cfg := localConfig(t)
	for key, addr := range map[string]string{
		"modules.cloudHub.websocket.port": edgeports.Address(&cfg.Modules.CloudHub.WebSocket),
		"modules.cloudHub.https.port":     edgeports.Address(&cfg.Modules.CloudHub.HTTPS),
		"modules.cloudStream.tunnelPort": edgeports.Address(&v1alpha1.Listener{
			Address: "127.0.0.1", Port: cfg.Modules.CloudStream.TunnelPort,
		}),
		"commonConfig.monitorServer.bindAddress": cfg.CommonConfig.MonitorServer.BindAddress,
	} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		err = serve(t.Context(), cfg, fakeAPI())
		if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%v, want %s and %s in it", err, key, addr)
		}
		_ = l.Close()
	}
	// The socket of the last one is closed behind its listener's back, a moment later.
	var udp net.PacketConn
	wait.Until(t, "the port to be free", func() (err error) {
		udp, err = net.ListenPacket("udp", edgeports.Address(&cfg.Modules.CloudHub.Quic.Listener))
		return err
	})
	if err := serve(t.Context(), cfg, fakeAPI()); err == nil ||
		!strings.Contains(err.Error(), "modules.cloudHub.quic.port") {
		t.Errorf("%v, want the key of the port in it", err)
	}
	_ = udp.Close()
	cfg.Modules.CloudHub.UnixSocket.Address = "unix:///proc/none/hub.sock"
	if err := serve(t.Context(), cfg, fakeAPI()); err == nil ||
		!strings.Contains(err.Error(), "modules.cloudHub.unixsocket.address") {
		t.Errorf("%v, want the key of the socket in it", err)
	}
}

// TestLocalConfig: beside a cloudcore with the defaults, these tests share no port, socket or file of the host with it.
func TestLocalConfig(t *testing.T) {
	theirs, ours := hostSettings(t, v1alpha1.Default()), hostSettings(t, localConfig(t))
	for key, value := range theirs {
		if cmp.Equal(value, ours[key]) {
			t.Errorf("%s = %v, which is the default, want one of the test's own", key, value)
		}
	}
	if want := "modules.cloudStream.tunnelPort"; theirs[want] == nil {
		t.Errorf("settings of the host = %v, want %s among them", theirs, want)
	}
}

// hostSettings returns the settings that name a port, an address or a file of this host, by their paths, without those
// that cloudcore does not open.
func hostSettings(t *testing.T, cfg *v1alpha1.CloudCore) map[string]any {
	t.Helper()
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	ofHost, unused := regexp.MustCompile(`(?i)(port|address|file)$`),
		regexp.MustCompile(`^commonConfig\.tunnelPort$|\.advertiseAddress$|^modules\.router\.|`+
			`^modules\.cloudStream\.(streamPort|tls.*)$`)
	out := map[string]any{}
	var walk func(path string, node map[string]any)
	walk = func(path string, node map[string]any) {
		for key, value := range node {
			key = strings.TrimPrefix(path+"."+key, ".")
			if child, ok := value.(map[string]any); ok {
				walk(key, child)
			} else if value != "" && ofHost.MatchString(key) && !unused.MatchString(key) {
				out[key] = value
			}
		}
	}
	walk("", tree)
	return out
}
