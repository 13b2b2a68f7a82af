package identity

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func of(pod string) Identity {
	return Identity{Pod: types.UID(pod), PodName: pod, Account: Account{Namespace: "shop", Name: "web"}}
}

func store(t *testing.T, table *Table, row, token, pod string) {
	t.Helper()
	if err := table.Stored(row, NewToken(token, of(pod))); err != nil {
		t.Fatal(err)
	}
}

func known(table *Table, token string) string {
	id, ok := table.Of(token)
	if !ok {
		return ""
	}
	return string(id.Pod)
}

// TestPreviousTokenStaysForTenMinutes: clients read the file of a renewed token once a minute.
func TestPreviousTokenStaysForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(time.Now)
		store(t, table, "row", "first", "p1")
		time.Sleep(24 * time.Hour) // a token in use is known for as long as it is in use
		store(t, table, "row", "second", "p1")
		store(t, table, "row", "second", "p1") // stored again: nothing has changed
		time.Sleep(previousLife - time.Second)
		if a, b := known(table, "first"), known(table, "second"); a != "p1" || b != "p1" {
			t.Errorf("just before its end the previous token is of %q, the current one of %q; want p1 for both", a, b)
		}
		time.Sleep(time.Second)
		if a, b := known(table, "first"), known(table, "second"); a != "" || b != "p1" {
			t.Errorf("after 10 minutes the previous token is of %q, the current one of %q; want none and p1", a, b)
		}
		store(t, table, "row", "third", "p1")
		if n := table.Len(); n != 2 {
			t.Errorf("%d tokens, want 2: the second and the third", n)
		}
		store(t, table, "row", "fourth", "p1")
		if a := known(table, "second"); a != "" {
			t.Errorf("the token before the previous one is of %q, want it unknown", a)
		}
	})
}

// TestRemovedEndsAtOnce: a pod that is gone has no tokens, current or previous.
func TestRemovedEndsAtOnce(t *testing.T) {
	table := NewTable(time.Now)
	store(t, table, "row", "first", "p1")
	store(t, table, "row", "second", "p1")
	store(t, table, "other", "third", "p2")
	table.Removed("row")
	table.Removed("row")
	table.Removed("never there")
	if a, b, c := known(table, "first"), known(table, "second"), known(table, "third"); a+b != "" || c != "p2" {
		t.Errorf("tokens of the removed row are of %q and %q, that of another row of %q; want none, none, p2", a, b, c)
	}
	if table.Len() != 1 || len(table.rows) != 1 || len(table.pods) != 1 {
		t.Errorf("%d tokens, %d rows, %d pods are kept; want 1 of each", table.Len(), len(table.rows),
			len(table.pods))
	}
}

// TestBounds: neither a pod nor all of them can fill the memory, and a pod does not lose its tokens to another.
func TestBounds(t *testing.T) {
	table := NewTable(time.Now)
	for i := range maxPod {
		store(t, table, fmt.Sprint("row", i), fmt.Sprint("token", i), "greedy")
	}
	if err := table.Stored("more", NewToken("more", of("greedy"))); err == nil || known(table, "more") != "" {
		t.Errorf("token %d of a pod: %v, want an error", maxPod+1, err)
	}
	for i := range 5 * maxPod { // renewals of one row
		err := table.Stored("row0", NewToken(fmt.Sprint("renewed", i), of("greedy")))
		if n := table.pods["greedy"]; n > maxPod {
			t.Fatalf("%d tokens of a pod (%v), want at most %d", n, err, maxPod)
		}
		if token := fmt.Sprint("renewed", i); err != nil || known(table, token) != "greedy" {
			t.Fatalf("renewal %d at the limit: %v, its token is of %q; want it known", i, err, known(table, token))
		}
	}
	for i := range maxAll {
		_ = table.Stored(fmt.Sprint("all", i), NewToken(fmt.Sprint("all", i), of(fmt.Sprint("pod", i))))
	}
	if n := table.Len(); n > maxAll {
		t.Errorf("%d tokens, want at most %d", n, maxAll)
	}
	if known(table, "token3") != "greedy" {
		t.Error("the token of a pod is unknown after others were refused, want it known")
	}
}

// TestSameTokenInTwoRows: removing one row does not remove what the other one has.
func TestSameTokenInTwoRows(t *testing.T) {
	table := NewTable(time.Now)
	store(t, table, "a", "token", "p1")
	store(t, table, "b", "token", "p1")
	table.Removed("a")
	if known(table, "token") != "p1" {
		t.Error("the token is unknown, want it known by row b")
	}
	table.Removed("b")
	if table.Len() != 0 || len(table.pods) != 0 {
		t.Errorf("%d tokens and pods %v are kept, want none", table.Len(), table.pods)
	}
}

func jwt(t *testing.T, payload any) string {
	t.Helper()
	text, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(text) + ".c2ln"
}

func TestRead(t *testing.T) {
	const issuer = "https://kubernetes.default.svc"
	claims := func(audience any) map[string]any {
		return map[string]any{"iss": issuer, "aud": audience, "kubernetes.io": map[string]any{
			"namespace":      "shop",
			"serviceaccount": map[string]any{"name": "web", "uid": "s1"},
			"pod":            map[string]any{"name": "web-0", "uid": "p1"},
		}}
	}
	for name, tc := range map[string]struct {
		claims any
		forAPI bool
		err    string
	}{
		"default":         {claims([]string{issuer}), true, ""},
		"one text":        {claims(issuer), true, ""},
		"vault":           {claims([]string{"vault"}), false, ""},
		"no audience":     {claims(nil), false, ""},
		"number":          {claims(7), false, ""},
		"not of a pod":    {map[string]any{"iss": issuer, "aud": issuer}, false, "not bound to a pod"},
		"claims no table": {"text", false, "claims"},
	} {
		secret := jwt(t, tc.claims)
		text, err := json.Marshal(map[string]any{"status": map[string]any{"token": secret}})
		if err != nil {
			t.Fatal(err)
		}
		token, forAPI, err := Read(text)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want an error with %q", name, err, tc.err)
			}
			continue
		}
		want := NewToken(secret, Identity{
			Pod:        "p1",
			PodName:    "web-0",
			Account:    Account{"shop", "web"},
			AccountUID: "s1",
		})
		if err != nil || forAPI != tc.forAPI || token != want {
			t.Errorf("%s: %+v, for the API %v, %v; want %+v, %v", name, token.Identity, forAPI, err, want.Identity,
				tc.forAPI)
		}
	}
	for _, bad := range []string{"", "{}", `{"status":{"token":"a.b"}}`, `{"status":{"token":"a.!.c"}}`} {
		if _, _, err := Read([]byte(bad)); err == nil {
			t.Errorf("Read(%q) = nil, want an error", bad)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"status":{"token":"e30.e30.e30"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if token, _, err := Read(text); err == nil && (token.Pod == "" || token.Account.Name == "") {
			t.Errorf("Read(%q) = %+v, want an error for a token without pod or account", text, token)
		}
	})
}
