package link

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// TestToken: a token is renewed when it grows old, and kept, expired or not, while there is no link: also for a pod
// that starts anew.
func TestToken(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.apply(podOn("one", forever, ""))
	s.until("it runs", s.running("one"))
	first := s.readToken("one")
	s.cable.Set(proxy.Cut)
	s.ageTokens(2 * time.Hour)
	testenv.RemoveSandboxes(s.t, s.cri)
	s.until("it is back, without a link, with an expired token", func() error {
		if got, err := s.exec("one", "cat", tokenFile); err != nil || got != first {
			return fmt.Errorf("token %.20q, %w", got, err)
		}
		return nil
	})
	before := s.lives()
	s.cable.Set(proxy.Passing)
	s.until("the token is renewed", func() error {
		if got, err := s.exec("one", "cat", tokenFile); err != nil || got == first || !strings.HasPrefix(got, "eyJ") {
			return fmt.Errorf("token %.20q, %w", got, err)
		}
		return nil
	})
	review, err := s.api.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: s.readToken("one")}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "system:serviceaccount:default:default" ||
		review.Status.User.Extra["authentication.kubernetes.io/pod-name"][0] != "one" {
		t.Errorf("review of the new token: %+v, %v", review.Status, err)
	}
	for id, at := range s.lives() {
		if before[id] != at {
			t.Error("a new token restarted the container")
		}
	}
}

func (s *site) readToken(pod string) string {
	s.t.Helper()
	token, err := s.exec(pod, "cat", tokenFile)
	s.must(err)
	return token
}

// ageTokens makes the stored tokens seem to have been made that long ago.
func (s *site) ageTokens(by time.Duration) {
	s.t.Helper()
	s.must(s.edge.Stop(s.t.Context()))
	db, _, err := store.Open(s.t.Context(), s.edge.Store(), store.Options{})
	s.must(err)
	rows, err := db.List(s.t.Context(), "serviceaccounttoken")
	s.must(err)
	if len(rows) == 0 {
		s.t.Fatal("no token is stored")
	}
	for _, row := range rows {
		var token authenticationv1.TokenRequest
		s.must(json.Unmarshal(row.Value, &token))
		token.Status.ExpirationTimestamp.Time = token.Status.ExpirationTimestamp.Add(-by)
		row.Value, err = json.Marshal(token)
		s.must(err)
		s.must(db.Apply(s.t.Context(), store.Upsert(row)))
	}
	s.must(db.Close())
	s.must(s.edge.Start(s.t.Context()))
}

// TestQUIC: between our own ends the link may be QUIC; where UDP goes nowhere it is a WebSocket.
func TestQUIC(t *testing.T) {
	for _, c := range []struct {
		name, want string
		blocked    bool
	}{{"open", "edgecore/quic", false}, {"blocked", "edgecore/websocket", true}} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, siteOptions{noEdge: true})
			port := s.cloud.QUIC
			if c.blocked {
				l, err := net.ListenPacket("udp", "127.0.0.1:0") // takes packets and answers none
				s.must(err)
				defer l.Close()
				port = l.LocalAddr().(*net.UDPAddr).Port
			}
			s.startEdge(map[string]any{
				"quic":      map[string]any{"enable": true, "server": "127.0.0.1:" + strconv.Itoa(port)},
				"websocket": map[string]any{"enable": false, "server": s.cable.Addr()},
			})
			s.until("the node is Ready", s.nodeReady)
			s.apply(confAndKey)
			s.apply(full("one"))
			s.until("a pod runs", s.running("one"))
			s.cloudLogs(`"Node connected" node="` + node + `"`)
			s.cloudLogs(`protocol="` + c.want + `"`)
			s.must(s.cloud.Kill9(t.Context()))
			s.must(s.cloud.Start(t.Context()))
			s.apply(full("two"))
			s.until("another runs over a new link", s.running("two"))
		})
	}
}
