package adopt

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// manager is the name under which the API server records what an adoption writes.
const manager = "cloudcore-adopt"

// api reads and writes objects of all kinds.
type api struct {
	objects   dynamic.Interface
	discovery discovery.DiscoveryInterface
	mapper    meta.RESTMapper
	// server is the URL of kube-apiserver.
	server string
}

func newAPI(rc *rest.Config) (*api, error) {
	rc = rest.CopyConfig(rc)
	rc.ContentType, rc.AcceptContentTypes = "application/json", "application/json"
	if rc.QPS == 0 {
		rc.QPS, rc.Burst = 50, 100
	}
	client, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(rc, client)
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfigAndClient(rc, client)
	if err != nil {
		return nil, err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	return &api{objects, disco, mapper, rc.Host}, nil
}

// minor returns Kubernetes' minor version.
func (a *api) minor() (int, error) {
	v, err := a.discovery.ServerVersion()
	if err != nil {
		return 0, err
	}
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if err != nil || v.Major != "1" {
		return 0, fmt.Errorf("kube-apiserver has the version %s.%s, want 1.N", v.Major, v.Minor)
	}
	return minor, nil
}

// known reports whether the API server knows the kind of an object.
func (a *api) known(ref Ref) (bool, error) {
	_, err := a.clientFor(ref)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil, err
}

// mapping returns the resource of a reference's kind.
func (a *api) mapping(ref Ref) (*meta.RESTMapping, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	return a.mapper.RESTMapping(gv.WithKind(ref.Kind).GroupKind(), gv.Version)
}

// clientFor returns the way to objects of a reference's kind, in its namespace.
func (a *api) clientFor(ref Ref) (dynamic.ResourceInterface, error) {
	m, err := a.mapping(ref)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return a.objects.Resource(m.Resource).Namespace(ref.Namespace), nil
	}
	return a.objects.Resource(m.Resource), nil
}

// get returns an object, or nil if there is none, or none of its kind.
func (a *api) get(ctx context.Context, ref Ref) (*unstructured.Unstructured, error) {
	client, err := a.clientFor(ref)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o, err := client.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, err)
	}
	return o, nil
}

// list returns the objects of a reference's kind in its namespace that a selector selects.
func (a *api) list(ctx context.Context, ref Ref, selector string) ([]unstructured.Unstructured, error) {
	client, err := a.clientFor(ref)
	if err != nil {
		return nil, err
	}
	var all []unstructured.Unstructured
	opts := metav1.ListOptions{LabelSelector: selector, Limit: 500}
	for {
		page, err := client.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list %ss: %w", strings.ToLower(ref.Kind), err)
		}
		all = append(all, page.Items...)
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return all, nil
		}
	}
}

func (a *api) create(ctx context.Context, o *unstructured.Unstructured) error {
	client, err := a.clientFor(refOf(o))
	if err != nil {
		return err
	}
	if _, err = client.Create(ctx, o, metav1.CreateOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("create %s: %w", refOf(o), err)
	}
	return nil
}

// probeSuffix makes the names under which objects are created in dry runs.
const probeSuffix = "-adopt-probe"

// tryCreate returns the error of creating an object, under another name and without creating it.
func (a *api) tryCreate(ctx context.Context, o *unstructured.Unstructured) error {
	return a.tryCreateAs(ctx, o, o.GetName()+probeSuffix)
}

// tryCreateAs is tryCreate with a name.
func (a *api) tryCreateAs(ctx context.Context, o *unstructured.Unstructured, name string) error {
	client, err := a.clientFor(refOf(o))
	if err != nil {
		return err
	}
	probe := withoutServerFields(o)
	probe.SetName(name)
	_, err = client.Create(ctx, probe, metav1.CreateOptions{
		FieldManager: manager, DryRun: []string{metav1.DryRunAll},
	})
	if err != nil {
		return fmt.Errorf("create %s (dry run): %w", refOf(o), err)
	}
	return nil
}

// maxRaces is how often a write is retried after losing to another writer, such as a controller.
const maxRaces = 20

// replace writes next in place of now, whatever others write meanwhile. What only the API server or other controllers
// know stays.
func (a *api) replace(ctx context.Context, now, next *unstructured.Unstructured) error {
	for range maxRaces {
		err := a.update(ctx, now, next)
		if !apierrors.IsConflict(err) {
			return err
		}
		again, err := a.get(ctx, refOf(next))
		if err != nil {
			return err
		}
		if again == nil {
			return a.create(ctx, next)
		}
		now = again
	}
	return fmt.Errorf("replace %s: other clients keep changing it", refOf(next))
}

// update is replace, but fails if now is not what is there.
func (a *api) update(ctx context.Context, now, next *unstructured.Unstructured) error {
	if _, err := a.sendUpdate(ctx, now, next); err != nil {
		return fmt.Errorf("replace %s: %w", refOf(now), err)
	}
	return nil
}

// tryUpdate returns the error of update, without writing anything.
func (a *api) tryUpdate(ctx context.Context, now, next *unstructured.Unstructured) error {
	if _, err := a.sendUpdate(ctx, now, next, metav1.DryRunAll); err != nil {
		return fmt.Errorf("replace %s (dry run): %w", refOf(now), err)
	}
	return nil
}

// sendUpdate sends an update and returns what the object is then.
func (a *api) sendUpdate(ctx context.Context, now, next *unstructured.Unstructured, dryRun ...string) (
	*unstructured.Unstructured, error,
) {
	client, err := a.clientFor(refOf(now))
	if err != nil {
		return nil, err
	}
	return client.Update(ctx, carryOver(now, next), metav1.UpdateOptions{FieldManager: manager, DryRun: dryRun})
}

// delete deletes an object that was read; it is not an error if it is gone.
func (a *api) delete(ctx context.Context, now *unstructured.Unstructured) error {
	client, err := a.clientFor(refOf(now))
	if err != nil {
		return err
	}
	uid, background := now.GetUID(), metav1.DeletePropagationBackground
	err = client.Delete(ctx, now.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", refOf(now), err)
	}
	return nil
}

// carryOver returns next with those fields of now without which the API server would refuse it, or other controllers
// would write it again.
func carryOver(now, next *unstructured.Unstructured) *unstructured.Unstructured {
	out := next.DeepCopy()
	out.SetResourceVersion(now.GetResourceVersion())
	if len(out.GetFinalizers()) == 0 {
		out.SetFinalizers(now.GetFinalizers())
	}
	if len(out.GetOwnerReferences()) == 0 {
		out.SetOwnerReferences(now.GetOwnerReferences())
	}
	fields := map[string][][]string{
		"Service":        {{"spec", "clusterIP"}, {"spec", "clusterIPs"}, {"spec", "healthCheckNodePort"}},
		"ServiceAccount": {{"secrets"}, {"imagePullSecrets"}},
	}[now.GetKind()]
	for _, field := range fields {
		value, ok, err := unstructured.NestedFieldCopy(now.Object, field...)
		if _, set, _ := unstructured.NestedFieldNoCopy(out.Object, field...); ok && err == nil && !set {
			_ = unstructured.SetNestedField(out.Object, value, field...) // its parents are mappings, as in now
		}
	}
	return out
}
