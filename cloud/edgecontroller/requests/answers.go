package requests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Module and group in the route of answers (docs/wire.md, Responses).
const sourceName = "edgecontroller"

// statusError is the content of an error: alone in the answer of a query, under Err in others (docs/wire.md,
// Responses).
type statusError struct {
	ErrStatus metav1.Status
}

// objectResponse is the content of an answer to a write.
type objectResponse struct {
	Object any
	Err    *statusError
}

// asStatus converts any error to a Status: KubeEdge's edgecore takes an error that is not a Status for success.
func asStatus(err error) metav1.Status {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		s.TypeMeta = metav1.TypeMeta{}
		return s
	}
	code, reason := int32(500), metav1.StatusReasonInternalError
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		code, reason = 504, metav1.StatusReasonTimeout
	}
	return metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: err.Error()}
}

// result is the outcome of a request.
type result struct {
	// none: send no answer.
	none bool
	// content of the answer.
	content any
	// version is the object's resource version for the header; usually empty.
	version string
	// resource replaces the request's resource in the answer; usually empty.
	resource string
}

// written is the result of a write that is answered with the object (an ObjectResp); withVersion puts its version into
// the header.
func written(obj objects.Object, err error, withVersion bool) result {
	if err != nil {
		return result{content: objectResponse{Err: &statusError{asStatus(err)}}}
	}
	out := objects.Shallow(obj)
	out.SetManagedFields(nil)
	out.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	r := result{content: objectResponse{Object: out}}
	if withVersion {
		r.version = obj.GetResourceVersion()
	}
	return r
}

// patched is the result of a status that was written. Our edgecores know the object and their status of it: the answer
// only says that it was written, and for which object.
func patched(r *request, obj objects.Object, err error) result {
	res := written(obj, err, true)
	if err == nil && r.capable {
		res.content = objectResponse{Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace:       obj.GetNamespace(),
			Name:            obj.GetName(),
			UID:             obj.GetUID(),
			ResourceVersion: obj.GetResourceVersion(),
		}}}
	}
	return res
}

// found is the result of a query: the object with apiVersion and kind, or the error.
func found(obj objects.Object, err error) result {
	if err != nil {
		return failed(err)
	}
	out, err := objects.WithKind(obj)
	if err != nil {
		return failed(err)
	}
	return result{content: out, version: obj.GetResourceVersion()}
}

func failed(err error) result { return result{content: statusError{asStatus(err)}} }

func ok() result { return result{content: model.OK} }

// okOr returns "OK", or the error.
func okOr(err error) result {
	if err != nil {
		return failed(err)
	}
	return ok()
}

// answer makes the message from a result.
func answer(m *model.Message, r result) (*model.Message, error) {
	content, err := json.Marshal(r.content)
	if err != nil {
		return nil, fmt.Errorf("encode the answer to %s %s: %w", m.Route.Operation, m.Route.Resource, err)
	}
	to := m.Respond(content)
	to.Header.ResourceVersion = r.version
	to.Route.Source, to.Route.Group = sourceName, model.GroupResource
	if r.resource != "" {
		to.Route.Resource = r.resource
	}
	return to, nil
}

// gr names types in errors.
func gr(kind string) schema.GroupResource {
	switch kind {
	case resource.TypeLease:
		return schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	case resource.TypeVolumeAttachment:
		return schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"}
	case resource.TypeCSIDriver:
		return schema.GroupResource{Group: "storage.k8s.io", Resource: "csidrivers"}
	case resource.TypeCSINode:
		return schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}
	case resource.TypeRuntimeClass:
		return schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}
	case resource.TypeClusterTrustBundle:
		return schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	case resource.TypeCSR:
		return schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	case resource.TypeEndpoints:
		return schema.GroupResource{Resource: "endpoints"}
	}
	return schema.GroupResource{Resource: kind + "s"}
}

func forbidden(key resource.Key, format string, args ...any) error {
	return apierrors.NewForbidden(gr(key.Type), key.Name, fmt.Errorf(format, args...))
}

func badRequest(key resource.Key, format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s: ", key) + fmt.Sprintf(format, args...))
}

// count counts a request of a known type: edges cannot create label values.
func (q *Requests) count(f requestName, known bool, r result) {
	if !known {
		f = requestName{"unknown", "unknown"}
	}
	q.Answered.WithLabelValues(f.kind, f.op, strconv.Itoa(codeOf(r))).Inc()
}

// codeOf returns the HTTP status of a result; 0 without an answer.
func codeOf(r result) int {
	if r.none {
		return 0
	}
	switch content := r.content.(type) {
	case statusError:
		return int(content.ErrStatus.Code)
	case objectResponse:
		if content.Err != nil {
			return int(content.Err.ErrStatus.Code)
		}
	}
	return 200
}
