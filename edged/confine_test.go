package edged

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/runtime"
)

func TestHandlerByName(t *testing.T) {
	f := runtime.Features{Name: "containerd", Version: "1.6.20", Handlers: map[string]runtime.Handler{"": {}, "runc": {}, "kata": {}}}
	if got, err := handlerByName("kata", f, errors.New("not asked")); got != "kata" || err != nil {
		t.Errorf("handlerByName(kata) = %q, %v; want kata", got, err)
	}
	_, err := handlerByName("gvisor", f, errors.New("not asked"))
	want := `failed to get sandbox runtime: runtime class "gvisor": not asked; and the runtime containerd 1.6.20 has no handler of this name (it has: kata, runc)`
	if err == nil || err.Error() != want {
		t.Errorf("handlerByName(gvisor): %v, want %q", err, want)
	}
	if _, err := handlerByName("gvisor", runtime.Features{}, errors.New("not asked")); err == nil || !strings.Contains(err.Error(), "not asked") {
		t.Errorf("handlerByName(gvisor) of an unknown runtime: %v, want the reason of the class", err)
	}
}

func TestNodeHandlers(t *testing.T) {
	if handlers, features := nodeHandlers(runtime.Features{}); handlers != nil || features != nil {
		t.Errorf("nodeHandlers(no features) = %v, %v, want nil, nil", handlers, features)
	}
	handlers, features := nodeHandlers(runtime.Features{Name: "containerd", SupplementalGroupsPolicy: true,
		Handlers: map[string]runtime.Handler{"runc": {UserNamespaces: true}, "": {RecursiveReadOnlyMounts: true}}})
	of := func(name string, readOnly, users bool) v1.NodeRuntimeHandler {
		return v1.NodeRuntimeHandler{Name: name, Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &users}}
	}
	if diff := cmp.Diff([]v1.NodeRuntimeHandler{of("", true, false), of("runc", false, true)}, handlers); diff != "" {
		t.Errorf("handlers mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(true)}, features); diff != "" {
		t.Errorf("features mismatch (-want +got):\n%s", diff)
	}
}
