package adopt

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The phases of an adoption.
const (
	applying = "applying"
	applied  = "applied"
	undoing  = "undoing"
	// undone: all is as it was before the adoption, but for the CRDs in the journal, which were left.
	undone = "undone"
)

const (
	// journalName is the Secret of the journal: it has Secrets among what it saves.
	journalName = "cloudcore-adopt"
	// stateKey and originalsKey are its keys. The second is a List in JSON, compressed with gzip: if all else fails,
	// kubectl can apply it.
	stateKey, originalsKey = "state", "originals"
	// journalVersion is the version of the journal's form.
	journalVersion = 1
	// maxOriginals limits what is saved, compressed and not; a Secret takes 1 MiB.
	maxOriginals, maxPlainOriginals = 900 << 10, 16 << 20
)

// journal is what Undo needs, and how far an adoption has come.
type journal struct {
	Version int       `json:"version"`
	Phase   string    `json:"phase"`
	At      time.Time `json:"at"`
	Image   string    `json:"image"`
	// CA is the hash of casecret, as it was.
	CA string `json:"ca"`
	// Created are the objects that did not exist before.
	Created []Ref `json:"created"`

	// originals are the objects that are deleted or replaced, without what the API server sets itself.
	originals []*unstructured.Unstructured
	// stored is the Secret that was read; nil if there is none.
	stored *unstructured.Unstructured
}

// running reports whether an adoption was begun, and not undone since. j may be nil.
func (j *journal) running() bool { return j != nil && j.Phase != undone }

// original returns the object that the journal has saved, or nil.
func (j *journal) original(ref Ref) *unstructured.Unstructured {
	for _, o := range j.originals {
		if refOf(o) == ref {
			return o
		}
	}
	return nil
}

// loadJournal returns nil if there is none.
func (a *Adoption) loadJournal(ctx context.Context) (*journal, error) {
	s, err := a.api.get(ctx, secret(journalName))
	if err != nil || s == nil {
		return nil, err
	}
	j := &journal{stored: s}
	if err := j.decode(s); err != nil {
		return nil, fmt.Errorf("journal secret/%s: %w", journalName, err)
	}
	return j, nil
}

func (j *journal) decode(s *unstructured.Unstructured) error {
	state, err := dataOf(s, stateKey)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(state, j); err != nil {
		return err
	}
	if j.Version != journalVersion {
		return fmt.Errorf("it has version %d, and this cloudcore knows %d: use the version that has adopted the cloud",
			j.Version, journalVersion)
	}
	switch j.Phase {
	case applying, applied, undoing, undone:
	default:
		return fmt.Errorf("it has the phase %q, which is unknown", j.Phase)
	}
	packed, err := dataOf(s, originalsKey)
	if err != nil {
		return err
	}
	j.originals, err = unpack(packed)
	return err
}

func dataOf(s *unstructured.Unstructured, key string) ([]byte, error) {
	text, ok, err := unstructured.NestedString(s.Object, "data", key)
	if err != nil || !ok {
		return nil, fmt.Errorf("it has no key %s", key)
	}
	return base64.StdEncoding.DecodeString(text)
}

// pack makes a List of objects, compressed. The result depends on the objects alone.
func pack(objects []*unstructured.Unstructured) ([]byte, error) {
	items := make([]any, len(objects))
	for i, o := range objects {
		items[i] = o.Object
	}
	plain, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if len(plain) > maxPlainOriginals || out.Len() > maxOriginals {
		return nil, fmt.Errorf("what has to be saved is too large for a Secret: %d KiB in %d objects, compressed; "+
			"want %d at most: is one of KubeEdge's ConfigMaps, CRDs or roles too large?", out.Len()>>10, len(objects),
			maxOriginals>>10)
	}
	return out.Bytes(), nil
}

func unpack(packed []byte) ([]*unstructured.Unstructured, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxPlainOriginals+1))
	if err != nil {
		return nil, err
	}
	if len(plain) > maxPlainOriginals {
		return nil, errors.New("what it has saved is too large")
	}
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(plain); err != nil {
		return nil, err
	}
	out := make([]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// saveJournal writes the journal. It is an error if another has written it meanwhile.
func (a *Adoption) saveJournal(ctx context.Context, j *journal) error {
	j.Version = journalVersion
	state, err := json.Marshal(j)
	if err != nil {
		return err
	}
	packed, err := pack(j.originals)
	if err != nil {
		return err
	}
	s := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
		"metadata": map[string]any{
			"name": journalName, "namespace": Namespace,
			"labels": map[string]any{"app.kubernetes.io/part-of": "edgecore"},
		},
		"data": map[string]any{
			stateKey:     base64.StdEncoding.EncodeToString(state),
			originalsKey: base64.StdEncoding.EncodeToString(packed),
		},
	}}
	if j.stored == nil {
		err = a.api.create(ctx, s)
	} else {
		err = a.api.update(ctx, j.stored, s)
	}
	if err != nil {
		return err
	}
	j.stored, err = a.api.get(ctx, secret(journalName))
	if err == nil && j.stored == nil {
		err = fmt.Errorf("secret/%s was deleted by someone else", journalName)
	}
	return err
}
