package metamanager

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// TestVolumeSecret: a secret that a volume names and no pod is asked of the cloud each time, as nobody pushes its
// changes, and is answered from the store where the cloud cannot be asked. One that is gone is not.
func TestVolumeSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h := newLinked(t, Options{})
		const res = "a/secret/s"
		first, second, third := object("a", "s", "u", "1"), object("a", "s", "u", "2"), object("a", "s", "u", "3")
		var asked []string
		say := func(text string) {
			h.answer(func(m *model.Message) string {
				if m.Route.Resource == res {
					asked = append(asked, string(m.Content))
				}
				return synced(text)(m)
			})
		}
		check := func(when, content, want string) {
			t.Helper()
			if got := string(e.edged("query", res, content).Content); !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		const volume = `{"cloudFirst":true}`
		check("without a link", volume, "NotFound")
		say(first)
		e.link(upWithOurs)
		check("first", volume, first)
		say(second)
		check("for a pod, from the store", "null", first)
		check("rotated", volume, second)
		check("for a pod, from the store", "null", second)
		say(`{"ErrStatus":{"code":500,"reason":"InternalError"}}`)
		check("API server in trouble", volume, second)
		say(`{"ErrStatus":{"code":403,"reason":"Forbidden"}}`)
		check("not allowed any more", volume, "Forbidden")
		say("")
		began := time.Now()
		check("no answer in time", volume, second)
		if waited := time.Since(began); waited != storedSecretTimeout {
			t.Errorf("waited %v for the cloud with a secret in the store, want %v", waited, storedSecretTimeout)
		}
		e.link(down)
		check("without a link, from the store", volume, second)
		e.link(upWithOurs)
		say(notFoundAnswer)
		check("gone", volume, "NotFound")
		e.link(down)
		check("gone, without a link", volume, "NotFound")
		e.ok(e.cloud("update", res, third))
		check("pushed", volume, third)
		for _, content := range asked {
			if content != "" && content != "null" {
				t.Errorf("the cloud was asked with the content %s, want none", content)
			}
		}
		if len(asked) == 0 {
			t.Error("the cloud was never asked")
		}
	})
}
