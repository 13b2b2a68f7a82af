package adopt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// read returns what Decide wants to know. An object that an adoption has replaced already is the one that it saved.
func (a *Adoption) read(ctx context.Context, j *journal) (*Found, error) {
	f := &Found{Secrets: map[string]*v1.Secret{}, Server: a.api.server, Now: time.Now()}
	for _, ref := range readRefs() {
		o, err := a.original(ctx, j, ref)
		if err != nil {
			return nil, err
		}
		if o == nil {
			continue
		}
		if err := f.set(ref, o); err != nil {
			return nil, fmt.Errorf("%s: %w", ref, err)
		}
	}
	if f.Deployment == nil {
		return f, nil
	}
	for _, l := range leftObjects() {
		o, err := a.api.get(ctx, l.ref)
		if err != nil {
			return nil, err
		}
		if o == nil {
			continue
		}
		f.Left = append(f.Left, l.ref)
		failing, err := failingWebhooks(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.ref, err)
		}
		f.FailingWebhooks = append(f.FailingWebhooks, failing...)
	}
	if err := a.readServices(ctx, f); err != nil {
		return nil, err
	}
	if err := a.readRights(ctx, j, f); err != nil {
		return nil, err
	}
	var err error
	f.Minor, err = a.api.minor()
	return f, err
}

// original returns an object as it was before the adoption, or nil.
func (a *Adoption) original(ctx context.Context, j *journal, ref Ref) (*unstructured.Unstructured, error) {
	if j.running() {
		if o := j.original(ref); o != nil {
			return o, nil
		}
	}
	o, err := a.api.get(ctx, ref)
	switch {
	case !isOurs(o):
		return o, err
	case j == nil || j.running():
		return nil, err
	case !isLeft(o):
		return o, err
	}
	return j.original(ref), err
}

// set keeps an object that was read.
func (f *Found) set(ref Ref, o *unstructured.Unstructured) error {
	var err error
	switch ref.Kind {
	case "Deployment":
		if o.GetLabels()["app.kubernetes.io/part-of"] == "edgecore" {
			return nil // from edgecore's manifests
		}
		f.Deployment, err = as(o, f.Deployment)
	case "Service":
		f.Service, err = as(o, f.Service)
	case "ConfigMap":
		f.ConfigMap, err = as(o, f.ConfigMap)
	case "ServiceAccount":
		f.ServiceAccount, err = as(o, f.ServiceAccount)
	case "Namespace":
		f.Namespace, err = as(o, f.Namespace)
	case "Secret":
		f.Secrets[ref.Name], err = as(o, f.Secrets[ref.Name])
	}
	return err
}

// as returns an object in its Go type.
func as[T any](o *unstructured.Unstructured, _ *T) (*T, error) {
	out := new(T)
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out)
}

// failingWebhooks are the names of the webhooks of a configuration whose failurePolicy is Fail.
func failingWebhooks(o *unstructured.Unstructured) ([]string, error) {
	var names []string
	list, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	for _, entry := range list {
		hook, _ := entry.(map[string]any)
		if hook["failurePolicy"] == string(admissionv1.Fail) {
			hookName, _ := hook["name"].(string)
			names = append(names, hookName)
		}
	}
	return names, err
}

// readServices finds the other Services that select KubeEdge's pods, and the addresses of kube-apiserver.
func (a *Adoption) readServices(ctx context.Context, f *Found) error {
	services, err := a.api.list(ctx, service(""), "")
	if err != nil {
		return err
	}
	for i := range services {
		s, err := as(&services[i], &v1.Service{})
		if err != nil {
			return err
		}
		if s.Name != name && selects(s, f.Deployment.Spec.Template.Labels) {
			f.Selecting = append(f.Selecting, s.Name)
		}
	}
	slices, err := a.api.list(ctx, Ref{"discovery.k8s.io/v1", "EndpointSlice", "default", ""},
		discoveryv1.LabelServiceName+"=kubernetes")
	if err != nil {
		return err
	}
	for i := range slices {
		s, err := as(&slices[i], &discoveryv1.EndpointSlice{})
		if err != nil {
			return err
		}
		for _, e := range s.Endpoints {
			f.APIServers = append(f.APIServers, e.Addresses...)
		}
	}
	return nil
}

// caSum is a hash of the CA that devices trust.
func caSum(s *unstructured.Unstructured) string {
	if s == nil {
		return ""
	}
	data, err := json.Marshal(s.Object["data"])
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
