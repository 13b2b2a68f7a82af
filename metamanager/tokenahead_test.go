package metamanager

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/podstate/metaobjects"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

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

// TestTokenAhead: the token of a pod is asked for when the pod arrives, before it is stored, in the form in which edged
// asks for it; edged gets the answer to that request, and finds it in the store afterwards.
func TestTokenAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := newSlow(t)
		e.link(upWithOurs)
		synctest.Wait()
		e.ok(e.cloud("insert", "a/pod/web", podWithTokens("", `{"path":"token","expirationSeconds":3607}`,
			`{"path":"other","audience":"vault"}`)))
		synctest.Wait()
		if len(c.requests) != 2 {
			t.Fatalf("%d requests for tokens when the pod came, want 2", len(c.requests))
		}
		objects := metaobjects.New(metaclient.New(e.bus), "n1")
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "a", UID: "u1"}}
		pod.Spec.ServiceAccountName = "robot"
		type result struct {
			token string
			err   error
		}
		got := make(chan result, 2)
		asks := []*v1.ServiceAccountTokenProjection{
			{ExpirationSeconds: new(int64(3607))}, {Audience: "vault"},
		}
		for _, ask := range asks {
			go func() {
				token, _, err := objects.Token(t.Context(), pod, ask)
				got <- result{token, err}
			}()
		}
		synctest.Wait()
		if len(c.requests) != 2 {
			t.Fatalf("%d requests after edged asked as well, want the 2 on their way", len(c.requests))
		}
		for i, m := range c.requests {
			if m.Route.Resource != "a/"+resource.TypeServiceAccountToken+"/robot" {
				t.Errorf("request for %s", m.Route.Resource)
			}
			spec := strings.TrimSuffix(string(m.ContentData()), "}")
			c.answer(i, spec+`,"status":{"token":"secret","expirationTimestamp":"2100-01-01T00:00:00Z"}}`)
		}
		for range asks {
			if r := <-got; r.err != nil || r.token != "secret" {
				t.Errorf("token = %q, %v; want the answer", r.token, r.err)
			}
		}
		synctest.Wait()
		if rows := e.rows(resource.TypeServiceAccountToken); len(rows) != 2 {
			t.Errorf("stored tokens %v, want 2", rows)
		}
		for _, ask := range asks {
			if token, _, err := objects.Token(t.Context(), pod, ask); err != nil || token != "secret" {
				t.Errorf("token later = %q, %v; want the stored one", token, err)
			}
		}
		e.ok(e.cloud("update", "a/pod/web", podWithTokens(`,"labels":{"a":"b"}`, `{"path":"third","audience":"x"}`)))
		synctest.Wait()
		if len(c.requests) != 2 {
			t.Errorf("%d requests after an update of a stored pod, want 2", len(c.requests))
		}
	})
}

// TestTokenAheadFails: edged's own request goes to the cloud after the one that was made ahead has failed.
func TestTokenAheadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := newSlow(t)
		e.link(upWithOurs)
		synctest.Wait()
		e.ok(e.cloud("insert", "a/pod/web", podWithTokens("", `{"path":"token"}`)))
		synctest.Wait()
		objects := metaobjects.New(metaclient.New(e.bus), "n1")
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "a", UID: "u1"}}
		pod.Spec.ServiceAccountName = "robot"
		got := make(chan error, 1)
		go func() {
			_, _, err := objects.Token(t.Context(), pod, &v1.ServiceAccountTokenProjection{})
			got <- err
		}()
		synctest.Wait()
		c.answer(0, `{"ErrStatus":{"status":"Failure","reason":"Forbidden","code":403}}`)
		synctest.Wait()
		if len(c.requests) != 2 {
			t.Fatalf("%d requests after the first one failed, want 2", len(c.requests))
		}
		spec := strings.TrimSuffix(string(c.requests[1].ContentData()), "}")
		spec = strings.TrimSuffix(spec, `,"status":{"token":"","expirationTimestamp":null}`)
		c.answer(1, spec+`,"status":{"token":"secret","expirationTimestamp":"2100-01-01T00:00:00Z"}}`)
		if err := <-got; err != nil {
			t.Errorf("token: %v, want the second answer", err)
		}
	})
}
