package tokens

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

const (
	// gap is the time between two renewals that can wait, and from a new link to the first of them. A token takes
	// about 1.5 KB on the wire, and a device has one for each pod, most of the same age.
	gap = time.Minute
	// room is how long an old token has to be good still for its renewal to wait.
	room = 2 * time.Hour
)

// pace spreads the renewals of tokens that can wait.
type pace struct {
	mu   sync.Mutex
	last time.Time
}

// allow reports whether one may be renewed now, and counts it.
func (p *pace) allow(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since := now.Sub(p.last); since >= 0 && since < gap {
		return false
	}
	p.last = now
	return true
}

// pauseRenewals lets none be renewed for a while: what matters more goes over a new link first.
func (p *pace) pauseRenewals(now time.Time) {
	p.mu.Lock()
	p.last = now
	p.mu.Unlock()
}

// canWait reports whether a stored token is good for long, though it is to be renewed by what was asked for:
// kube-apiserver makes the tokens of pods for a year where they ask for an hour
// (--service-account-extend-token-expiration), and says so in the token alone.
func canWait(token []byte, now time.Time) bool {
	var request struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	if json.Unmarshal(token, &request) != nil {
		return false
	}
	parts := strings.Split(request.Status.Token, ".")
	if len(parts) != 3 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	return json.Unmarshal(text, &claims) == nil && time.Unix(claims.Expires, 0).Sub(now) > room
}

// fresh reports whether a stored token need not be renewed yet. A clock from before the token was made is not
// set, and says nothing about it.
func fresh(token []byte, now time.Time) bool {
	var request struct {
		Spec struct {
			ExpirationSeconds int64 `json:"expirationSeconds"`
		} `json:"spec"`
		Status struct {
			Token               string      `json:"token"`
			ExpirationTimestamp metav1.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	if json.Unmarshal(token, &request) != nil || request.Status.Token == "" {
		return false
	}
	life := time.Duration(request.Spec.ExpirationSeconds) * time.Second
	made := request.Status.ExpirationTimestamp.Add(-life)
	return now.Sub(made) < resource.TokenAge(life)
}
