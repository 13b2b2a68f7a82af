package kubectl

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testRefused asks the node's port without kube-apiserver: who is not known gets nothing, who is gets what the cluster
// lets them have.
func (n *node) testRefused(t *testing.T) {
	reader, nobody := n.NodeName+"-reader", n.NodeName+"-nobody"
	for _, user := range []string{reader, nobody} {
		_, err := n.kube.AddUser(user)
		env.Must(t, err)
	}
	env.Must(t, n.kube.Apply(t.Context(), fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules: [{apiGroups: [""], resources: [nodes/proxy], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: User, name: %[1]s}, {kind: ServiceAccount, name: default, namespace: %[1]s}]
`, reader)))
	env.Must(t, n.kube.Apply(t.Context(), "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+reader+"}\n"))
	wait.Until(t, "the service account", func() error {
		_, err := n.api.CoreV1().ServiceAccounts(reader).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	_, err := n.kube.AddServiceAccount(t.Context(), reader, "default")
	env.Must(t, err)

	logs, exec := "/containerLogs/"+n.NodeName+"/talker/main", "/exec/"+n.NodeName+"/web/main?command=ls&output=1"
	for name, c := range map[string]struct {
		config *rest.Config
		path   string
		want   string
	}{
		"nobody":                      {&rest.Config{}, logs, "401"},
		"a token of nobody":           {&rest.Config{BearerToken: "guessed"}, logs, "401"},
		"no rights":                   {n.user(t, nobody), logs, "403"},
		"logs with the right for it":  {n.user(t, reader), logs, "200 one"},
		"exec with that for logs":     {n.user(t, reader), exec, "403"},
		"logs with a token":           {n.user(t, reader+":default"), logs, "200 one"},
		"exec with that token":        {n.user(t, reader+":default"), exec, "403"},
		"exec by the admin":           {n.user(t, kube.AdminUser), exec, "400 Upgrade request required"},
		"the admin, but no such path": {n.user(t, kube.AdminUser), "/none", "404"},
	} {
		wait.Until(t, name, func() error { // rights take a moment to be known
			got, err := n.ask(t, c.config, c.path)
			if err == nil && !strings.HasPrefix(got, c.want) {
				err = fmt.Errorf("%s: answered %.200q, want %s", c.path, got, c.want)
			}
			return err
		})
	}
	other, err := strangersCertificate()
	env.Must(t, err)
	if got, err := n.ask(t, &rest.Config{
		TLSClientConfig: rest.TLSClientConfig{CertData: other.cert, KeyData: other.key},
	}, logs); err == nil && !strings.HasPrefix(got, "401") {
		t.Errorf("answer to a certificate of another authority = %s, want 401", got)
	}
}

// user is how a user asks a node.
func (n *node) user(t *testing.T, name string) *rest.Config {
	t.Helper()
	config, err := n.kube.ConfigFor(name)
	env.Must(t, err)
	return config
}

// ask asks the node's port and returns the code and the body.
func (n *node) ask(t *testing.T, config *rest.Config, path string) (string, error) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: clientTLS(t, config)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		fmt.Sprintf("https://127.0.0.1:%d%s", n.KubeletPort, path), nil)
	env.Must(t, err)
	if config.BearerToken != "" {
		req.Header.Set("Authorization", "Bearer "+config.BearerToken)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: wait.Max()}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", string(body)), err
}

// clientTLS shows the certificate of a client, and takes that of the node, which is its own.
func clientTLS(t *testing.T, config *rest.Config) *tls.Config {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true}
	if len(config.CertData) > 0 {
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		env.Must(t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// testDirect streams over WebSocket from the node's port itself, as programs do that are no kubectl.
func (n *node) testDirect(t *testing.T) {
	dialer := websocket.Dialer{
		TLSClientConfig: clientTLS(t, n.user(t, kube.AdminUser)), Subprotocols: []string{"v4.channel.k8s.io"},
		HandshakeTimeout: wait.Max(),
	}
	dial := func(path string) *websocket.Conn {
		t.Helper()
		conn, _, err := dialer.DialContext(t.Context(), fmt.Sprintf("wss://127.0.0.1:%d%s", n.KubeletPort, path), nil)
		env.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		env.Must(t, conn.SetReadDeadline(time.Now().Add(wait.Max())))
		return conn
	}
	// read collects what comes on each channel until there is what is wanted.
	read := func(conn *websocket.Conn, channel byte, want string) {
		t.Helper()
		got := ""
		for !strings.Contains(got, want) {
			_, data, err := conn.ReadMessage()
			if err != nil {
				t.Fatalf("%v after %q, want %q", err, got, want)
			}
			if len(data) > 0 && data[0] == channel {
				got += string(data[1:])
			}
		}
	}
	pod := n.NodeName + "/web"
	conn := dial("/exec/" + pod + "/main?command=sh&command=-c&command=" +
		url.QueryEscape("read x; echo got $x; exit 9") + "&input=1&output=1&error=1")
	env.Must(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00hello\n")))
	read(conn, 1, "got hello\n")
	read(conn, 3, `"message":"9"`)

	conn = dial("/exec/" + pod + "/main?command=sh&command=-c&command=" +
		url.QueryEscape("until stty size | grep -qx '40 100'; do sleep 0.1; done; echo sized") +
		"&input=1&output=1&tty=1")
	env.Must(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x04{\"Width\":100,\"Height\":40}")))
	read(conn, 1, "sized")

	n.until(t, "terminal", running)
	terminal := dial("/attach/" + n.NodeName + "/terminal/main?input=1&output=1&error=1")
	stop := insist(func() error { return terminal.WriteMessage(websocket.BinaryMessage, []byte("\x00hello\n")) })
	defer stop()
	read(terminal, 1, "got hello\r\n")

	conn = dial("/portForward/" + pod + "?port=8080")
	env.Must(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00GET /index.html HTTP/1.0\r\n\r\n")))
	read(conn, 0, "edgecore demo\n")
}

// pair is a certificate and its key, as PEM.
type pair struct{ cert, key []byte }

// strangersCertificate is that of a user of the cluster's most powerful group, by an authority that the cluster does
// not know.
func strangersCertificate() (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return pair{}, err
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}),
	}, nil
}
