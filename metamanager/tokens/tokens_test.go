package tokens

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// podWithTokens is a pod as the cloud sends it, with one volume for each source of a token.
func podWithTokens(more string, sources ...string) string {
	var volumes []string
	for _, source := range sources {
		volumes = append(volumes, fmt.Sprintf(`{"name":"v","projected":{"sources":[{"configMap":{"name":"ca"}},`+
			`{"serviceAccountToken":%s}]}}`, source))
	}
	return fmt.Sprintf(`{"metadata":{"name":"web","namespace":"a","uid":"u1"%s},"spec":{"serviceAccountName":"robot",`+
		`"volumes":[{"name":"e","emptyDir":{}},%s]}}`, more, strings.Join(volumes, ","))
}

// TestNoTokenAhead: pods that do not start here, and tokens without end, cause no requests.
func TestNoTokenAhead(t *testing.T) {
	key := resource.Key{Namespace: "a", Type: resource.TypePod, Name: "web"}
	many := make([]string, 3*aheadMax)
	for i := range many {
		many[i] = fmt.Sprintf(`{"path":"token","audience":"a%d"}`, i)
	}
	for name, tc := range map[string]struct {
		pod  string
		want int
	}{
		"a pod":         {podWithTokens("", `{"path":"token"}`), 1},
		"many tokens":   {podWithTokens("", many...), aheadMax},
		"being deleted": {podWithTokens(`,"deletionTimestamp":"2026-01-01T00:00:00Z"`, `{"path":"token"}`), 0},
		"a mirror pod":  {podWithTokens(`,"annotations":{"kubernetes.io/config.mirror":"x"}`, `{"path":"token"}`), 0},
		"ended": {strings.Replace(podWithTokens("", `{"path":"token"}`), `"spec"`,
			`"status":{"phase":"Failed"},"spec"`, 1), 0},
		"no volumes": {`{"metadata":{"name":"web","uid":"u1"}}`, 0},
		"no pod":     {`[]`, 0},
	} {
		var pod v1.Pod
		if err := json.Unmarshal([]byte(tc.pod), &pod); (err != nil) != (name == "no pod") {
			t.Fatal(err)
		}
		if got := len(Requests(key, &pod)); got != tc.want {
			t.Errorf("%s: %d requests, want %d", name, got, tc.want)
		}
	}
}

// TestTokenKey: the key is what Go makes of the API's types (docs/wire.md, Local store).
func TestTokenKey(t *testing.T) {
	seconds := int64(3607)
	ref := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: `a"b\c` + "`", UID: "52a53aab-é"}
	for _, spec := range []authenticationv1.TokenRequestSpec{
		{},
		{Audiences: []string{}},
		{Audiences: []string{"a", `b"`, "c`"}, ExpirationSeconds: &seconds},
		{ExpirationSeconds: &seconds, BoundObjectRef: ref},
	} {
		var wantSeconds int64
		if spec.ExpirationSeconds != nil {
			wantSeconds = *spec.ExpirationSeconds
		}
		var wantRef authenticationv1.BoundObjectReference
		if spec.BoundObjectRef != nil {
			wantRef = *spec.BoundObjectRef
		}
		want := fmt.Sprintf("%q/%q/%#v/%#v/%#v", "sa", "ns", spec.Audiences, wantSeconds, wantRef)
		content, err := json.Marshal(authenticationv1.TokenRequest{Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Key(resource.Key{Namespace: "ns", Type: resource.TypeServiceAccountToken, Name: "sa"}, content)
		if err != nil || got != want {
			t.Errorf("got  %s, %v\nwant %s", got, err, want)
		}
	}
}

// TestHasNoAudience: what was asked for is read from the key that Key gives it.
func TestHasNoAudience(t *testing.T) {
	account := resource.Key{Namespace: "a", Type: resource.TypeServiceAccountToken, Name: "robot"}
	for content, want := range map[string]bool{
		`{"spec":{}}`:                                  true,
		`{"spec":{"audiences":null}}`:                  true,
		`{"spec":{"audiences":[]}}`:                    true,
		`{"spec":{"audiences":["vault"]}}`:             false,
		`{"spec":{"audiences":["\"/[]string(nil)/"]}}`: false,
	} {
		row, err := Key(account, []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		if got := HasNoAudience(row); got != want {
			t.Errorf("%s, stored as %s: no audience %v, want %v", content, row, got, want)
		}
	}
	if HasNoAudience("a/pod/web") {
		t.Error("the row of a pod is one of a token, want none")
	}
}
