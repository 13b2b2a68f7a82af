package outbox

import (
	"cmp"
	"net/url"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// The outbox has a row for each object that is reported on. Its key is "<operation> <resource>", and for a pod
// "<operation>:<UID> <resource>": a pod and its successor of the same name (a StatefulSet's, or one that was force
// deleted) are two objects. Rows of pods without a UID are of versions before that. They are sent as well; an older
// version that finds a row with a UID takes the text before the space for the operation, and sends the row in its turn.

// keyOf returns the key in the outbox of a report on an object; uid is a pod's, or empty.
func keyOf(operation, uid, object string) string {
	if uid != "" {
		operation += ":" + url.QueryEscape(uid)
	}
	return operation + " " + object
}

// parseKey splits a key of the outbox. The UID is empty for what is not a pod, and for rows of older versions.
func parseKey(text string) (operation, uid string, key resource.Key, err error) {
	operation, name, _ := strings.Cut(text, " ")
	operation, escaped, _ := strings.Cut(operation, ":")
	if uid, err = url.QueryUnescape(escaped); err != nil {
		return "", "", resource.Key{}, err
	}
	key, err = resource.Parse(name)
	return operation, uid, key, err
}

// queueOf returns the queue of a report, from its key: reports on one object keep their order, and those on a pod and
// its end. uid is the pod's, for keys of older versions that do not have it.
func queueOf(text, uid string) string {
	_, own, key, err := parseKey(text)
	if err != nil {
		return text
	}
	if key.Type != resource.TypePod && key.Type != resource.TypePodPatch {
		return ObjectOf(key.String())
	}
	return PodQueue(key.String(), cmp.Or(own, uid))
}

// PodQueue returns the queue of the reports on a pod, from its resource or that of its status.
func PodQueue(text, uid string) string { return ObjectOf(text) + " " + uid }

// ofOlderVersion reports whether the key of a report on a pod is of a version that did not put the UID into it.
func ofOlderVersion(text string) bool {
	_, uid, key, err := parseKey(text)
	return err == nil && uid == "" && (key.Type == resource.TypePod || key.Type == resource.TypePodPatch)
}

// ObjectOf returns the object to which a message belongs, from its resource: messages about one object keep their
// order, and those about a pod and the reports on it.
func ObjectOf(text string) string {
	key, err := resource.Parse(text)
	if err != nil {
		return text
	}
	if key.Type == resource.TypePodPatch || key.Type == resource.TypePodStatus {
		key.Type = resource.TypePod
	}
	return key.String()
}
