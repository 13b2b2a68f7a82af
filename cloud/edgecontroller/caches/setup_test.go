package caches

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is caches that the test fills itself.
type fixture struct {
	*History
	t      testing.TB
	api    *fakes.API
	caches *Caches
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{t: t, api: &fakes.API{}}
	clients, err := impersonate.New(w.api.Config(), impersonate.UserAndGroup)
	if err != nil {
		t.Fatal(err)
	}
	if w.caches, err = New(clients, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	w.History = &History{Own: clients.Own, Caches: w.caches, Timeout: 15 * time.Second}
	return w
}

// add puts objects into the caches.
func (w *fixture) add(objs ...metav1.Object) {
	w.t.Helper()
	for _, o := range objs {
		if err := w.caches.Put(o); err != nil {
			w.t.Fatal(err)
		}
	}
}
