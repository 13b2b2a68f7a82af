package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Features are what a CRI runtime says that it can do.
type Features struct {
	// Name and Version of the runtime.
	Name, Version string
	// Handlers by name, "" the default one; nil where the runtime does not say which it has.
	Handlers map[string]Handler
	// SupplementalGroupsPolicy: the runtime knows the policy Strict, and tells containers' users.
	SupplementalGroupsPolicy bool
	// ImageVolumes: the runtime mounts images into containers.
	ImageVolumes bool
}

// Handler is what a handler of a runtime can do.
type Handler struct {
	UserNamespaces          bool
	RecursiveReadOnlyMounts bool
}

// Features returns what the runtime can do, as it last said; it is asked when it was not yet.
func (r *Runtime) Features(ctx context.Context) (Features, error) {
	if f := r.features.Load(); f != nil {
		return *f, nil
	}
	f, _, err := r.Learn(ctx)
	return f, err
}

// Known returns what the runtime said last that it can do; ok is false when it has said nothing yet.
func (r *Runtime) Known() (f Features, ok bool) {
	if p := r.features.Load(); p != nil {
		return *p, true
	}
	return Features{}, false
}

// Learn asks the runtime what it can do and how it is.
func (r *Runtime) Learn(ctx context.Context) (Features, *runtimeapi.RuntimeStatus, error) {
	version, err := r.Version(ctx)
	if err != nil {
		return Features{}, nil, fmt.Errorf("version of the runtime: %w", err)
	}
	status, err := r.client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return Features{}, nil, fmt.Errorf("status of the runtime: %w", err)
	}
	f := featuresOf(version, status)
	r.features.Store(&f)
	return f, status.GetStatus(), nil
}

// handler returns the handler that is to run a pod, which the runtime can run with it.
func (r *Runtime) handler(ctx context.Context, pod *v1.Pod) (handler string, err error) {
	if r.opts.Handler != nil {
		if handler, err = r.opts.Handler(ctx, pod); err != nil {
			return "", err
		}
	}
	if (Features{}).Lacks(pod, handler) == nil {
		return handler, nil // it asks for nothing that not all runtimes have
	}
	f, err := r.Features(ctx)
	if err != nil {
		return "", err
	}
	return handler, f.Lacks(pod, handler)
}

// featuresOf reads what a runtime says of itself.
func featuresOf(version *runtimeapi.VersionResponse, status *runtimeapi.StatusResponse) Features {
	f := Features{
		Name: version.GetRuntimeName(), Version: version.GetRuntimeVersion(),
		SupplementalGroupsPolicy: status.GetFeatures().GetSupplementalGroupsPolicy(),
		ImageVolumes:             mountsImages(version.GetRuntimeName(), version.GetRuntimeVersion()),
	}
	for _, h := range status.GetRuntimeHandlers() {
		if f.Handlers == nil {
			f.Handlers = map[string]Handler{}
		}
		f.Handlers[h.GetName()] = Handler{
			UserNamespaces: h.GetFeatures().GetUserNamespaces(), RecursiveReadOnlyMounts: h.GetFeatures().
					GetRecursiveReadOnlyMounts(),
		}
	}
	if f.Handlers == nil {
		f.Handlers = configuredHandlers(status.GetInfo()["config"])
	}
	return f
}

// configuredHandlers reads the handlers out of containerd's configuration, where it does not list them otherwise:
// before 1.7. None of them can do anything that came later.
func configuredHandlers(config string) map[string]Handler {
	var doc struct {
		Containerd struct {
			Runtimes map[string]json.RawMessage `json:"runtimes"`
		} `json:"containerd"`
	}
	if config == "" || json.Unmarshal([]byte(config), &doc) != nil || len(doc.Containerd.Runtimes) == 0 {
		return nil
	}
	handlers := map[string]Handler{"": {}}
	for name := range doc.Containerd.Runtimes {
		handlers[name] = Handler{}
	}
	return handlers
}

// mountsImages reports whether a runtime takes an image for a mount; none says so. An unknown one is left to say so
// when it is asked to.
func mountsImages(name, version string) bool {
	since, known := map[string][2]int{"containerd": {2, 1}, "cri-o": {1, 31}}[strings.ToLower(name)]
	if !known {
		return true
	}
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return true
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 != nil || err2 != nil || cmp.Or(cmp.Compare(major, since[0]), cmp.Compare(minor, since[1])) >= 0
}

// UserNamespaces reports whether pods of a handler can have user namespaces.
func (f Features) UserNamespaces(handler string) bool { return f.Handlers[handler].UserNamespaces }

// HandlerNames lists the handlers that have a name.
func (f Features) HandlerNames() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.Handlers)), func(name string) bool { return name == "" })
}

// Runtime names the runtime for a message.
func (f Features) Runtime() string { return strings.TrimSpace(f.Name + " " + f.Version) }

// Lacks returns an error that names each field of a pod for which the runtime is too old, or nil. It is pure.
func (f Features) Lacks(pod *v1.Pod, handler string) error {
	var errs []error
	if WantsUserNamespace(pod) && !f.UserNamespaces(handler) {
		errs = append(errs,
			fmt.Errorf("spec.hostUsers: the handler %q of the runtime %s does not support user namespaces; "+
				"they need containerd 2.0 with runc 1.2, CRI-O 1.25, or newer", handler, f.Runtime()))
	}
	if StrictGroups(pod) && !f.SupplementalGroupsPolicy {
		errs = append(errs,
			fmt.Errorf("spec.securityContext.supplementalGroupsPolicy: the runtime %s does not support Strict; "+
				"it needs containerd 2.0, CRI-O 1.31, or newer", f.Runtime()))
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Image != nil && !f.ImageVolumes {
			errs = append(errs, fmt.Errorf("spec.volumes[%d].image: the runtime %s cannot mount images; "+
				"it needs containerd 2.1, CRI-O 1.31, or newer", i, f.Runtime()))
		}
	}
	return errors.Join(errs...)
}

// WantsUserNamespace reports whether a pod is to have ids of its own.
func WantsUserNamespace(pod *v1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// StrictGroups reports whether a pod's containers are to be in no groups but those that the pod names.
func StrictGroups(pod *v1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.SupplementalGroupsPolicy != nil &&
		*sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict
}
