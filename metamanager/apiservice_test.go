package metamanager

import (
	"fmt"
	"testing"

	"github.com/edgecore-io/edgecore/metamanager/store"
)

func TestAPIServiceIPs(t *testing.T) {
	s := openStore(t)
	for _, tc := range []struct{ content, want string }{
		{"", "[]"},
		{`{"spec":{"clusterIP":"10.96.0.1"}}`, "[10.96.0.1]"},
		{`{"spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1","fd00::1"]}}`, "[10.96.0.1 fd00::1]"},
		{`{"spec":{"clusterIP":"None"}}`, "[]"},
	} {
		if tc.content != "" {
			if err := s.Apply(t.Context(), store.Upsert(store.Meta{
				Key: "default/service/kubernetes", Type: "service", Value: []byte(tc.content),
			})); err != nil {
				t.Fatal(err)
			}
		}
		got, err := APIServiceIPs(t.Context(), s)
		if err != nil || fmt.Sprint(got) != tc.want {
			t.Errorf("Service %s: %v, %v; want %s", tc.content, got, err, tc.want)
		}
	}
	if err := s.Apply(t.Context(), store.Upsert(store.Meta{
		Key: "default/service/kubernetes", Type: "service", Value: []byte("{"),
	})); err != nil {
		t.Fatal(err)
	}
	if got, err := APIServiceIPs(t.Context(), s); err == nil {
		t.Errorf("a damaged Service: %v, want an error", got)
	}
}
