// Package identity knows which pod a token of a service account is of, for the tokens that this device got for its
// pods. It keeps digests, not tokens. It does not verify tokens: kube-apiserver does that. What is known here decides
// only which limits a client has, and whose they are.
package identity

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// previousLife is how long the previous token of a renewal is known: clients read the file again each minute.
	previousLife = 10 * time.Minute
	// maxPod and maxAll limit how many tokens are known. Those beyond are treated like tokens of strangers.
	maxPod = 16
	maxAll = 8192
)

// Account is a service account.
type Account struct{ Namespace, Name string }

// String returns NAMESPACE/NAME.
func (a Account) String() string { return a.Namespace + "/" + a.Name }

// Identity is the pod that a token is of, and its service account.
type Identity struct {
	Pod     types.UID
	PodName string
	Account Account
	// AccountUID is empty if the token does not say it.
	AccountUID types.UID
}

// Token is a token that the device got for a pod.
type Token struct {
	Identity
	digest [sha256.Size]byte
}

// NewToken makes a Token.
func NewToken(token string, of Identity) Token {
	return Token{Identity: of, digest: sha256.Sum256([]byte(token))}
}

// claims are what Kubernetes writes into a token.
type claims struct {
	Issuer     string          `json:"iss"`
	Audience   json.RawMessage `json:"aud"`
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount ref    `json:"serviceaccount"`
		Pod            ref    `json:"pod"`
	} `json:"kubernetes.io"`
}

type ref struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Read reads a TokenRequest (authentication.k8s.io/v1) with its token, as the cloud has answered it. Its token is
// trusted for what it says, since the cloud has made it for this device. forAPI reports whether the token is known to
// be for kube-apiserver because it names its issuer as audience. That is the default; a cluster can have other
// audiences (--api-audiences), which tokens that are requested without audiences get.
func Read(tokenRequest []byte) (token Token, forAPI bool, err error) {
	var request struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	if err := json.Unmarshal(tokenRequest, &request); err != nil {
		return Token{}, false, fmt.Errorf("not a TokenRequest: %w", err)
	}
	parts := strings.Split(request.Status.Token, ".")
	if len(parts) != 3 {
		return Token{}, false, fmt.Errorf("the TokenRequest's token has %d parts, want 3", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Token{}, false, fmt.Errorf("the TokenRequest's token is not base64: %w", err)
	}
	var c claims
	if err := json.Unmarshal(payload, &c); err != nil {
		return Token{}, false, fmt.Errorf("the claims of the TokenRequest's token: %w", err)
	}
	k := &c.Kubernetes
	if k.Pod.UID == "" || k.ServiceAccount.Name == "" || k.Namespace == "" {
		return Token{}, false, fmt.Errorf("the TokenRequest's token is not bound to a pod of a service account")
	}
	return NewToken(request.Status.Token, Identity{
		Pod:        k.Pod.UID,
		PodName:    k.Pod.Name,
		Account:    Account{Namespace: k.Namespace, Name: k.ServiceAccount.Name},
		AccountUID: k.ServiceAccount.UID,
	}), c.Issuer != "" && hasAudience(c.Audience, c.Issuer), nil
}

// hasAudience reports whether audiences, a text or a list of texts, have one.
func hasAudience(audiences json.RawMessage, audience string) bool {
	var list []string
	if json.Unmarshal(audiences, &list) != nil {
		list = make([]string, 1)
		if json.Unmarshal(audiences, &list[0]) != nil {
			return false
		}
	}
	for _, a := range list {
		if a == audience {
			return true
		}
	}
	return false
}

// Table has the tokens that are known, by the row of the store that each is in. Its methods may be called from any
// goroutine. Make it with NewTable.
type Table struct {
	now func() time.Time

	mu      sync.Mutex
	entries map[[sha256.Size]byte]entry
	rows    map[string]*row
	pods    map[types.UID]int // entries of each pod
}

// entry is a token that is known. A zero until is one that is in use.
type entry struct {
	Identity
	row   string
	until time.Time
}

type row struct {
	current, previous [sha256.Size]byte
	hasPrevious       bool
}

// NewTable returns a table without tokens. now must be monotonic: a clock that is set must not end a token.
func NewTable(now func() time.Time) *Table {
	return &Table{
		now:     now,
		entries: map[[sha256.Size]byte]entry{},
		rows:    map[string]*row{},
		pods:    map[types.UID]int{},
	}
}

// Stored adds the token that is in a row now. The one that was there before stays known for 10 minutes. It returns an
// error if there is no room for it.
func (t *Table) Stored(name string, token Token) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.prune(now)
	r := t.rows[name]
	if r != nil && r.current == token.digest {
		return nil
	}
	if r != nil {
		t.dropPrevious(r, name)
		if old, ok := t.entries[r.current]; ok && old.row == name {
			old.until = now.Add(previousLife)
			t.entries[r.current] = old
			r.previous, r.hasPrevious = r.current, true
		}
		r.current = [sha256.Size]byte{}
	}
	full := func() bool { return len(t.entries) >= maxAll || t.pods[token.Pod] >= maxPod }
	if r != nil && full() { // a renewal always finds room
		t.dropPrevious(r, name)
	}
	if full() {
		return fmt.Errorf("token of service account %s for pod %s: there are %d tokens of the pod and %d in all; its "+
			"requests have the limits of unknown clients", token.Account, token.Pod, t.pods[token.Pod], len(t.entries))
	}
	if r == nil {
		r = &row{}
		t.rows[name] = r
	}
	t.drop(token.digest) // a token that another row had
	r.current = token.digest
	t.entries[token.digest] = entry{Identity: token.Identity, row: name}
	t.pods[token.Pod]++
	return nil
}

// Removed forgets the tokens of a row, also the previous one: the pod is gone.
func (t *Table) Removed(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[name]
	if r == nil {
		return
	}
	t.dropPrevious(r, name)
	if e, ok := t.entries[r.current]; ok && e.row == name {
		t.drop(r.current)
	}
	delete(t.rows, name)
}

// Clear forgets all tokens.
func (t *Table) Clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.entries)
	clear(t.rows)
	clear(t.pods)
}

// Of returns whose token it is.
func (t *Table) Of(token string) (Identity, bool) {
	digest := sha256.Sum256([]byte(token))
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[digest]
	if !ok || !e.until.IsZero() && !t.now().Before(e.until) {
		return Identity{}, false
	}
	return e.Identity, true
}

// Len returns how many tokens are known.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
}

// prune forgets previous tokens whose time is over. It is called for each token that is stored, which is rare.
func (t *Table) prune(now time.Time) {
	for digest, e := range t.entries {
		if !e.until.IsZero() && !now.Before(e.until) {
			t.drop(digest)
		}
	}
}

func (t *Table) dropPrevious(r *row, name string) {
	if e, ok := t.entries[r.previous]; ok && r.hasPrevious && e.row == name {
		t.drop(r.previous)
	}
	r.hasPrevious = false
}

func (t *Table) drop(digest [sha256.Size]byte) {
	e, ok := t.entries[digest]
	if !ok {
		return
	}
	delete(t.entries, digest)
	if t.pods[e.Pod]--; t.pods[e.Pod] == 0 {
		delete(t.pods, e.Pod)
	}
}
