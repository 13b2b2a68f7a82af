package edged

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func testPod(name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}}
}

func TestExpandPath(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"A": "v", "EMPTY": ""}[name]
		return value, ok
	}
	if got, err := expandPath("x/$(A)", lookup); err != nil || got != "x/v" {
		t.Errorf("expandPath(x/$(A)) = %q, %v; want x/v", got, err)
	}
	for text, want := range map[string]string{
		"x/$(B)": "missing value for B", "$(EMPTY)": "missing value for EMPTY", "$(EMPTY)/$(B)/$(A)/$(EMPTY)": "missing value for B, EMPTY",
	} {
		if got, err := expandPath(text, lookup); err == nil || err.Error() != want {
			t.Errorf("expandPath(%s): got %q, %v, want %q", text, got, err, want)
		}
	}
}
