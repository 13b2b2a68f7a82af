package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
)

// freePort is a port of this host that nobody listens on now.
func freePort(t *testing.T, network string) int32 {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return int32(c.LocalAddr().(*net.UDPAddr).Port)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// localConfig is the default on free ports of this host, and with no file of the host.
func localConfig(t *testing.T) *v1alpha1.CloudCore {
	cfg := v1alpha1.Default()
	hub := &cfg.Modules.CloudHub
	hub.AdvertiseAddress = []string{"127.0.0.1"}
	hub.TLSCAFile, hub.TLSCAKeyFile, hub.TLSCertFile, hub.TLSPrivateKeyFile = "", "", "", ""
	for _, l := range []*v1alpha1.Listener{&hub.WebSocket, &hub.HTTPS} {
		l.Address, l.Port = "127.0.0.1", freePort(t, "tcp")
	}
	hub.Quic.Enable, hub.Quic.Address, hub.Quic.Port = true, "127.0.0.1", freePort(t, "udp")
	hub.UnixSocket.Address = "unix://" + t.TempDir() + "/hub.sock"
	cfg.CommonConfig.MonitorServer.BindAddress = address(&v1alpha1.Listener{Address: "127.0.0.1", Port: freePort(t, "tcp")})
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

// await polls until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// TestServe: all parts come up on an API server, answer, and end with their context.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := localConfig(t)
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, fake.NewClientset()) }()
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	monitor := "http://" + cfg.CommonConfig.MonitorServer.BindAddress
	await(t, "readyz", func() bool {
		status, _ := get(t, plain, monitor+"/readyz")
		return status == http.StatusOK
	})
	status, text := get(t, plain, monitor+"/readyz?verbose")
	if want := "[+]kube-apiserver ok\n[+]certificates ok\nreadyz check passed\n"; status != 200 || string(text) != want {
		t.Errorf("readyz: %d %s", status, text)
	}
	insecure := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	status, der := get(t, insecure, "https://"+address(&cfg.Modules.CloudHub.HTTPS)+"/ca.crt")
	if _, err := x509.ParseCertificate(der); status != 200 || err != nil {
		t.Errorf("ca.crt: %d, %v", status, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if status, _ := get(t, plain, monitor+"/healthz"); status != 0 {
		t.Error("the monitor server still answers")
	}
}

// TestServePortInUse: a port that is taken ends cloudcore with a sentence, and everything that was started with it.
func TestServePortInUse(t *testing.T) {
	cfg := localConfig(t)
	for key, addr := range map[string]string{
		"modules.cloudHub.https.port":            address(&cfg.Modules.CloudHub.HTTPS),
		"commonConfig.monitorServer.bindAddress": cfg.CommonConfig.MonitorServer.BindAddress,
	} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		err = serve(t.Context(), cfg, fake.NewClientset())
		if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%v, want %s and %s in it", err, key, addr)
		}
		_ = l.Close()
	}
}

func TestCertificateOptions(t *testing.T) {
	hub := &v1alpha1.CloudHub{
		AdvertiseAddress: []string{"192.0.2.1", "2001:db8::1"}, DNSNames: []string{"", "cloud.example.com"},
		TLSCAFile: "/ca", TLSCAKeyFile: "/cakey", TLSCertFile: "/cert", TLSPrivateKeyFile: "/key",
		EdgeCertSigningDuration: 2, TokenRefreshDuration: 3,
	}
	want := certificates.Options{
		CAFile: "/ca", CAKeyFile: "/cakey", CertFile: "/cert", KeyFile: "/key",
		Addresses: []string{"192.0.2.1", "2001:db8::1", "cloud.example.com"}, ProtectTaken: true,
		NodeLifetime: 48 * time.Hour, TokenRefresh: 3 * time.Hour,
	}
	if diff := cmp.Diff(want, certificateOptions(hub)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := address(&v1alpha1.Listener{Address: "::1", Port: 7}); got != "[::1]:7" {
		t.Errorf("address %s", got)
	}
}
