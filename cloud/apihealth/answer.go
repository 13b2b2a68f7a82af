package apihealth

import (
	"net/http"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// verdict is what an answer says about whether cloudcore can do its work.
type verdict int

const (
	// nothing: an outage, or an answer about the state of an object.
	nothing verdict = iota
	accepted
	// refusedNode: what one node sends is refused, which may be that node's fault.
	refusedNode
	// refusedSelf: cloudcore is refused, whichever node the request is for.
	refusedSelf
)

// The remedies.
const (
	remedyRights = "apply deploy/cloudcore/base/rbac.yaml, and before Kubernetes 1.36 also before-1.36/rbac.yaml"
	remedyUser   = "check the service account kubeedge/cloudcore, or the credentials of kubeAPIConfig.kubeConfig"
	remedyCRDs   = "kubectl apply -k deploy/cloudcore/crds"
	remedyProxy  = "check the proxy or load balancer in front of kube-apiserver: the answer is not kube-apiserver's"
	remedyNodes  = "check the node authorizer (--authorization-mode=Node,RBAC), and the admission policies and " +
		"webhooks of the cluster"
	// remedyAdmission is for what cloudcore writes in its own name.
	remedyAdmission = "check the admission policies and webhooks of the cluster, and apply " +
		"deploy/cloudcore/base/policy.yaml"
)

// answer is what kube-apiserver answered. The zero value says nothing.
type answer struct {
	verdict verdict
	// text is the answer, and remedy what to do about a refusal.
	text, remedy string
}

// maxText limits the text of an answer.
const maxText = 300

// classify returns what an answer means. body is the body of an answer that is an error.
func (t target) classify(code int, body []byte) answer {
	if code < http.StatusBadRequest {
		return answer{verdict: accepted}
	}
	status, _ := decode(body)
	a := answer{text: strconv.Itoa(code) + " " + http.StatusText(code)}
	if status != nil {
		a.text = strconv.Itoa(code) + " " + clip(status.Message)
	}
	switch code {
	case http.StatusUnauthorized:
		a.verdict, a.remedy = refusedSelf, remedyUser
	case http.StatusForbidden:
		a.verdict, a.remedy = t.classifyForbidden(status)
	case http.StatusNotFound:
		// Without a name it is the resource that does not exist. Reads of some are tried to find that out.
		if t.write && (status == nil || status.Details == nil || status.Details.Name == "") {
			a.verdict, a.remedy = refusedSelf, remedyCRDs
		}
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		a.verdict, a.remedy = refusedNode, remedyNodes
	case http.StatusInternalServerError:
		if status != nil && strings.Contains(status.Message, "failed calling webhook") {
			a.verdict, a.remedy = refusedNode, remedyNodes
		}
	}
	if a.verdict == refusedNode {
		return t.classifyForNode(a)
	}
	return a
}

// classifyForNode classifies a refused request that need not concern cloudcore itself. Whether a node may read an
// object is between it and the node authorizer. What cloudcore writes in its own name may be refused because of the
// object; the writer logs that. It counts as the refusal of the node that the object belongs to, or as cloudcore's own
// if the object is.
func (t target) classifyForNode(a answer) answer {
	switch {
	case !t.write:
		return answer{}
	case t.node != "":
		return a
	case t.kind == kindSecret || t.kind == kindReplica:
		a.verdict, a.remedy = refusedSelf, remedyAdmission
		return a
	case t.about != "":
		a.remedy = remedyAdmission
		return a
	}
	return answer{}
}

// classifyForbidden tells whom a 403 refuses: RBAC and the node authorizer name the user.
func (t target) classifyForbidden(status *metav1.Status) (v verdict, remedy string) {
	switch {
	case status == nil:
		return refusedSelf, remedyProxy
	case strings.Contains(status.Message, `User "`+nodeUser+t.node+`" cannot`) && t.node != "":
		return refusedNode, remedyNodes
	case strings.Contains(status.Message, `User "`) && strings.Contains(status.Message, `" cannot `):
		return refusedSelf, remedyRights
	case isTerminating(status), strings.Contains(status.Message, "exceeded quota: "):
		return nothing, "" // the namespace's own limits
	}
	return refusedNode, remedyNodes
}

// isTerminating reports whether a request is refused because its namespace is being deleted.
func isTerminating(status *metav1.Status) bool {
	if status.Details == nil {
		return false
	}
	for _, cause := range status.Details.Causes {
		if cause.Type == v1.NamespaceTerminatingCause {
			return true
		}
	}
	return false
}

// decode returns the Status in the body of an answer, in JSON or protobuf.
func decode(body []byte) (*metav1.Status, error) {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	status, _ := obj.(*metav1.Status)
	return status, nil
}

func clip(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}
