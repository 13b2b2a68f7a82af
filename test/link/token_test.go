package link

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const (
	// tokenFile holds a token that Kubernetes makes for an hour.
	tokenFile = "/token/own"
	// defaultTokenFile holds that of the default volume. It lasts a year, so the edge renews it only a minute after the
	// link is back.
	defaultTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
)

// testToken: a token is renewed when it grows old, and kept, expired or not, while there is no link: also for a pod
// that starts again.
func testToken(t *testing.T, c *env.Cluster) {
	e := startEdge(t, c, nil)
	e.apply(e.pod("one", env.Forever, `  volumes:
  - {name: token, projected: {sources: [{serviceAccountToken: {path: own, expirationSeconds: 3600}}]}}`) +
		"    volumeMounts: [{name: token, mountPath: /token}]\n")
	e.running("one")
	first := map[string]string{}
	for _, file := range []string{tokenFile, defaultTokenFile} {
		var err error
		first[file], err = e.ExecIn("one", "cat", file)
		env.Must(t, err)
		if !strings.HasPrefix(first[file], "eyJ") {
			t.Fatalf("token %s is %.20q, want one that begins with eyJ", file, first[file])
		}
	}
	e.cable.Set(proxy.Cut)
	e.ageTokens(2 * time.Hour)
	testenv.RemoveSandboxes(t, e.CRI)
	wait.Until(t, "the pod to be back, without a link, with its expired tokens", func() error {
		for file, want := range first {
			if got, err := e.ExecIn("one", "cat", file); err != nil || got != want {
				return fmt.Errorf("token %s is %.20q (%v), want %.20q", file, got, err, want)
			}
		}
		return nil
	})
	before := e.RunningContainers()
	e.cable.Set(proxy.Passing)
	var renewed string
	wait.Until(t, "the token to be renewed", func() (err error) {
		renewed, err = e.ExecIn("one", "cat", tokenFile)
		if err == nil && (renewed == first[tokenFile] || !strings.HasPrefix(renewed, "eyJ")) {
			err = fmt.Errorf("token %.20q, want another than the first", renewed)
		}
		return err
	})
	e.checkToken("the new token", renewed)
	other, err := e.ExecIn("one", "cat", defaultTokenFile) // it need not be another yet
	env.Must(t, err)
	e.checkToken("the token of the default volume", other)
	if diff := cmp.Diff(before, e.RunningContainers()); diff != "" {
		t.Errorf("start times of the running containers after the renewal of the token mismatch (-want +got):\n%s",
			diff)
	}
}

// checkToken checks that the API server takes a token for that of pod one.
func (e *edge) checkToken(what, token string) {
	t := e.T
	t.Helper()
	review, err := e.cluster.API.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	env.Must(t, err)
	user := "system:serviceaccount:" + e.NodeName + ":default"
	pods := review.Status.User.Extra["authentication.kubernetes.io/pod-name"]
	if !review.Status.Authenticated || review.Status.User.Username != user || len(pods) != 1 || pods[0] != "one" {
		t.Errorf("review of %s = %+v, want user %s and pod one", what, review.Status, user)
	}
}

// ageTokens makes the stored tokens seem to have been made that long ago.
func (e *edge) ageTokens(by time.Duration) {
	t := e.T
	t.Helper()
	env.Must(t, e.Stop(t.Context()))
	db, _, err := store.Open(t.Context(), e.Store(), store.Options{})
	env.Must(t, err)
	rows, err := db.List(t.Context(), "serviceaccounttoken")
	env.Must(t, err)
	if len(rows) == 0 {
		t.Fatal("0 tokens are stored, want at least 1")
	}
	for _, row := range rows {
		var token authenticationv1.TokenRequest
		env.Must(t, json.Unmarshal(row.Value, &token))
		token.Status.ExpirationTimestamp.Time = token.Status.ExpirationTimestamp.Add(-by)
		row.Value, err = json.Marshal(token)
		env.Must(t, err)
		env.Must(t, db.Apply(t.Context(), store.Upsert(row)))
	}
	env.Must(t, db.Close())
	env.Must(t, e.Start(t.Context()))
}

// testQUIC: between our own ends the link may be QUIC; where UDP goes nowhere it is a WebSocket.
func testQUIC(t *testing.T, shared *env.Cluster) {
	for _, tc := range []struct {
		name, want string
		blocked    bool
	}{{"open", "edgecore/quic", false}, {"blocked", "edgecore/websocket", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := shared.WithCloud(t) // which is killed
			port := c.Cloud.QUIC
			if tc.blocked {
				l, err := net.ListenPacket("udp", "127.0.0.1:0") // takes packets and answers none
				env.Must(t, err)
				defer l.Close()
				port = l.LocalAddr().(*net.UDPAddr).Port
			}
			e := startEdge(t, c, map[string]any{
				"quic":      map[string]any{"enable": true, "server": "127.0.0.1:" + strconv.Itoa(port)},
				"websocket": map[string]any{"enable": false, "server": "127.0.0.1:" + strconv.Itoa(c.Cloud.Link)},
			})
			e.apply(confAndKey, e.full("one"))
			e.running("one")
			e.cloudLogs(`"Node connected" node="` + e.NodeName + `"`)
			e.cloudLogs(`protocol="` + tc.want + `"`)
			env.Must(t, c.Cloud.Kill9(t.Context()))
			env.Must(t, c.Cloud.Start(t.Context()))
			e.apply(e.full("two"))
			e.running("two")
		})
	}
}
