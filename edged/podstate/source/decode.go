package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"
)

const (
	// maxManifest bounds a manifest file: an object in the API is at most 1.5 MiB, and a file may hold several.
	maxManifest = 16 << 20
	// maxParts bounds the elements, members and lines of a manifest file, and maxObjects the objects of its documents.
	// A part of two bytes takes hundreds as a node of YAML, and an object of three bytes takes a thousand as a
	// container. 110 pods of 200 objects have 22,000.
	maxParts, maxObjects = 500_000, 50_000
	// yamlBuffer is how much of a stream is looked at to tell YAML from JSON.
	yamlBuffer = 4096
)

// Annotations that the kubelet puts on static pods; tools know them by these names.
const (
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationSeen   = "kubernetes.io/config.seen"
	AnnotationMirror = "kubernetes.io/config.mirror"
	sourceFile       = "file"
	// API is the value of AnnotationSource on pods of the API server.
	API = "api"
)

// Decode reads every pod of a manifest: YAML or JSON, several documents, v1 Pod or a List of them.
// Pods come out as the node runs them: defaulted, validated, named "<name>-<node>", bound to the node,
// with a UID that depends only on the node and on what the document says (not on its layout or
// comments), so that an unchanged manifest means unchanged containers. A bad document refuses the
// file; if the first one, which is all that a kubelet reads, has pods, they come with a TrailingError.
// Warnings name fields that no Pod has.
func Decode(data []byte, nodeName string) (pods []*v1.Pod, warnings []string, err error) {
	if len(data) > maxManifest {
		return nil, nil, fmt.Errorf("%d bytes: a manifest may have %d at the most", len(data), maxManifest)
	}
	if n := parts(data); n > maxParts {
		return nil, nil,
			fmt.Errorf("%d elements, fields and lines: a manifest may have %d at the most; split it into several files",
				n, maxParts)
	}
	docs, counted, first := newDocuments(data), 0, 0
	for n := 1; ; n++ {
		raw, repeated, err := docs.next()
		if errors.Is(err, io.EOF) {
			break
		}
		var found []*v1.Pod
		var warn []string
		if err == nil && !empty(raw) { // an empty document stands between two separators
			if counted += objects(raw); counted > maxObjects {
				err = fmt.Errorf("more than %d objects: split the file into several", maxObjects)
			} else {
				found, warn, err = decodeDocument(raw, nodeName)
			}
		}
		if err != nil {
			err = fmt.Errorf("document %d: %w", n, err)
			if first == 0 {
				return nil, nil, err
			}
			return pods, warnings, &TrailingError{Err: err}
		}
		if repeated != nil {
			warn = append(warn, fmt.Sprintf("document %d: %v; the last one counts", n, repeated))
		}
		pods, warnings = append(pods, found...), append(warnings, warn...)
		if n == 1 {
			first = len(pods)
		}
	}
	if len(pods) == 0 {
		return nil, nil, errors.New("no pod in the file; want a v1 Pod in YAML or JSON")
	}
	return pods, warnings, nil
}

// TrailingError is what is wrong with a later document of a file whose first one is a pod. A kubelet reads no more than
// the first, and runs it.
type TrailingError struct{ Err error }

func (e *TrailingError) Error() string {
	return e.Err.Error() + "; the pods of the documents before it run, if no other pod of the file would end"
}

func (e *TrailingError) Unwrap() error { return e.Err }

// parts counts what may begin an element, a member or a line in YAML or JSON, also in strings.
func parts(data []byte) int {
	n := 0
	for _, b := range data {
		switch b {
		case '\n', ',', '{', '[', ':', '-':
			n++
		}
	}
	return n
}

// objects counts the objects of a JSON document.
func objects(raw []byte) int {
	n, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch b := raw[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case b == '{' && !quoted:
			n++
		}
	}
	return n
}

func decodeDocument(raw []byte, nodeName string) ([]*v1.Pod, []string, error) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		return nil, nil, fmt.Errorf("not an object: %w", err)
	}
	if meta.APIVersion != "v1" {
		return nil, nil, fmt.Errorf("apiVersion %q, kind %q: static manifests hold v1 Pods only", meta.APIVersion,
			meta.Kind)
	}
	switch meta.Kind {
	case "Pod":
		pod, warn, err := decodePod(raw, nodeName)
		if err != nil {
			return nil, nil, err
		}
		return []*v1.Pod{pod}, warn, nil
	case "List", "PodList":
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, nil, fmt.Errorf("kind %s: %w", meta.Kind, err)
		}
		var pods []*v1.Pod
		var warnings []string
		for i, item := range list.Items {
			// Items of a PodList may leave out what the list says.
			item, err := typed(item)
			if err != nil {
				return nil, nil, fmt.Errorf("item %d: %w", i, err)
			}
			pod, warn, err := decodePod(item, nodeName)
			if err != nil {
				return nil, nil, fmt.Errorf("item %d: %w", i, err)
			}
			pods, warnings = append(pods, pod), append(warnings, warn...)
		}
		return pods, warnings, nil
	}
	return nil, nil, fmt.Errorf("kind %q: static manifests hold v1 Pods only", meta.Kind)
}

// typed returns a list item if it is a v1 Pod or does not say what it is.
func typed(raw json.RawMessage) (json.RawMessage, error) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		return nil, fmt.Errorf("not an object: %w", err)
	}
	if (meta.APIVersion != "" && meta.APIVersion != "v1") || (meta.Kind != "" && meta.Kind != "Pod") {
		return nil, fmt.Errorf("apiVersion %q, kind %q: static manifests hold v1 Pods only", meta.APIVersion, meta.Kind)
	}
	return raw, nil
}

func decodePod(raw []byte, nodeName string) (*v1.Pod, []string, error) {
	pod := &v1.Pod{}
	// As the kubelet, and unlike encoding/json, it tells upper from lower case in the names of fields.
	strict, err := kjson.UnmarshalStrict(raw, pod)
	if err != nil {
		return nil, nil, fmt.Errorf("not a pod: %w", err)
	}
	var warnings []string
	if len(strict) > 0 {
		texts := make([]string, len(strict))
		for i, err := range strict {
			texts[i] = err.Error()
		}
		warnings = append(warnings, fmt.Sprintf("pod %q: %s", pod.Name, strings.Join(texts, "; ")))
	}
	if kind := apiReference(pod); kind != "" {
		warnings = append(warnings, fmt.Sprintf("pod %q refers to %s: it has no mirror pod in the cluster, and runs "+
			"only while this device has what it refers to", pod.Name, kind))
	}
	hash, err := fingerprint(raw, nodeName)
	if err != nil {
		return nil, nil, err
	}
	if err := complete(pod, hash, nodeName); err != nil {
		return nil, nil, err
	}
	return pod, warnings, nil
}

// complete makes a pod of a manifest one of the node, with the hash of its document.
func complete(pod *v1.Pod, hash, nodeName string) error {
	if pod.Name == "" {
		return errors.New("metadata.name: required")
	}
	if pod.UID == "" {
		pod.UID = types.UID(hash)
	}
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Status = v1.PodStatus{}
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = nil, nil
	pod.Name += "-" + strings.ToLower(nodeName)
	pod.Spec.NodeName = nodeName
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[AnnotationSource] = sourceFile
	pod.Annotations[AnnotationHash] = hash
	pod.Annotations[AnnotationSeen] = time.Now().Format(time.RFC3339Nano)
	// The node agent itself keeps static pods where they are, whatever taints the node has.
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{
		Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
	})
	SetDefaults(pod)
	return Validate(pod)
}

// fingerprint is a hash of what a document says for a node, in 32 hex digits as the kubelet's.
func fingerprint(raw []byte, nodeName string) (string, error) {
	var value any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return "", err
	}
	canonical, err := json.Marshal(value) // sorts keys
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "node:%s\n", nodeName)
	h.Write(canonical)
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// IsStatic reports whether a pod comes from a manifest on the node.
func IsStatic(pod *v1.Pod) bool {
	return pod != nil && pod.Annotations[AnnotationSource] == sourceFile
}
