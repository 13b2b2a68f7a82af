package runtimeclass

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
)

func TestHandler(t *testing.T) {
	offline, hangs := errors.New("no link to the cloud"), errors.New("the runtime does not answer")
	known := runtime.Features{Handlers: map[string]runtime.Handler{"kata": {}}}
	for name, tc := range map[string]struct {
		class    *string
		answer   *nodev1.RuntimeClass
		err      error
		features error
		want     string
		wantErr  string
	}{
		"no class": {err: errors.New("asked"), want: ""},
		"a class": {class: ptr.To("safe"), answer: &nodev1.RuntimeClass{Handler: "kata-qemu"},
			want: "kata-qemu"},
		"no such class": {
			class: ptr.To("safe"), err: apierrors.NewNotFound(schema.GroupResource{}, "safe"),
			wantErr: "remove runtimeClassName",
		},
		"offline, a handler's name": {class: ptr.To("kata"), err: offline, want: "kata"},
		"offline, another name":     {class: ptr.To("safe"), err: offline, wantErr: offline.Error()},
		"without a handler": {
			class: ptr.To("safe"), answer: &nodev1.RuntimeClass{}, wantErr: "names no handler",
		},
		"offline, the runtime's away": {class: ptr.To("kata"), err: offline, features: hangs, wantErr: hangs.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			r := Resolver{
				Class:    func(context.Context, string) (*nodev1.RuntimeClass, error) { return tc.answer, tc.err },
				Features: func(context.Context) (runtime.Features, error) { return known, tc.features },
			}
			got, err := r.Handler(t.Context(), &v1.Pod{Spec: v1.PodSpec{RuntimeClassName: tc.class}})
			if got != tc.want || (err == nil) != (tc.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("Handler = %q, %v; want %q, an error with %q", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestHandlerByName(t *testing.T) {
	f := runtime.Features{
		Name:     "containerd",
		Version:  "1.6.20",
		Handlers: map[string]runtime.Handler{"": {}, "runc": {}, "kata": {}},
	}
	if got, err := handlerByName("kata", f, errors.New("not asked")); got != "kata" || err != nil {
		t.Errorf("handlerByName(kata) = %q, %v; want kata", got, err)
	}
	_, err := handlerByName("gvisor", f, errors.New("not asked"))
	want := `failed to get sandbox runtime: runtime class "gvisor": not asked; ` +
		`and the runtime containerd 1.6.20 has no handler of this name (it has: kata, runc)`
	if err == nil || err.Error() != want {
		t.Errorf("handlerByName(gvisor): %v, want %q", err, want)
	}
	if _, err := handlerByName("gvisor", runtime.Features{}, errors.New("not asked")); err == nil ||
		!strings.Contains(err.Error(), "not asked") {
		t.Errorf("handlerByName(gvisor) of an unknown runtime: %v, want the reason of the class", err)
	}
}
