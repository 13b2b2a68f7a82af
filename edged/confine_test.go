package edged

import (
	"errors"
	"strings"
	"testing"

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
