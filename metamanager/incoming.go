package metamanager

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// incoming is an object that the cloud has sent, checked. It is decoded once, as far as its type needs: a pod whole, of
// which also the size in memory counts, a ConfigMap or a Secret with its metadata, and others with their identity.
type incoming struct {
	identity
	key  resource.Key
	data []byte
	// row is where it is stored; readStorable sets it.
	row string
	// sized is its size; nil for types without a limit.
	sized *sized
}

// identity is what the module has to know of an object; the rest of it is not decoded here.
type identity struct {
	Metadata  metadata        `json:"metadata"`
	ErrStatus json.RawMessage `json:"ErrStatus"`
}

type metadata struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	// DeletionTimestamp is empty or null unless the object is being deleted.
	DeletionTimestamp json.RawMessage `json:"deletionTimestamp"`
}

// deleting reports whether the object is being deleted.
func (m *metadata) deleting() bool {
	return len(m.DeletionTimestamp) > 0 && string(m.DeletionTimestamp) != "null"
}

// storable reports whether a message may name this object to store or to delete it.
func storable(key resource.Key) error {
	switch key.Type {
	case resource.TypePod, resource.TypeConfigMap, resource.TypeSecret, resource.TypeNode, resource.TypeLease,
		resource.TypeService, resource.TypeServiceAccountToken, resource.TypePersistentVolume,
		resource.TypePersistentVolumeClaim, resource.TypeVolumeAttachment,
		resource.TypeRuntimeClass, resource.TypeCSIDriver, resource.TypeCSINode, resource.TypeClusterTrustBundle,
		resource.TypeDevice, resource.TypeDeviceModel:
	default:
		return fmt.Errorf("%s: objects of the type %q are not stored on the edge", key, key.Type)
	}
	if key.Name == "" {
		return fmt.Errorf("%s: it has to name one object: want <namespace>/<type>/<name>", key)
	}
	return nil
}

// readStorable reads an object that a message has to store.
func readStorable(key resource.Key, data []byte) (*incoming, error) {
	if err := storable(key); err != nil {
		return nil, err
	}
	in, err := readIncoming(key, data)
	if err != nil {
		return nil, err
	}
	if key.Type == resource.TypePod && in.Metadata.UID == "" {
		return nil, fmt.Errorf("%s: the pod has no UID", key)
	}
	in.row, err = rowKey(key, data)
	return in, err
}

// readIncoming decodes and checks an object.
func readIncoming(key resource.Key, data []byte) (in *incoming, err error) {
	in = &incoming{key: key, data: data}
	if limited(key.Type) && checkElements(key, data) == nil {
		if in.sized, err = measure(key, data); err == nil {
			meta := &in.sized.meta
			in.Metadata.Name, in.Metadata.Namespace = meta.Name, meta.Namespace
			in.Metadata.UID, in.Metadata.ResourceVersion = string(meta.UID), meta.ResourceVersion
			in.ErrStatus = in.sized.errStatus
			return in, in.check(key, data)
		}
	}
	if bad := in.read(key, data); bad != nil { // if it is no object at all, this says so
		return nil, bad
	}
	return in, err
}

// read decodes and checks what an object is, without its size.
func (id *identity) read(key resource.Key, data []byte) error {
	if err := checkElements(key, data); err != nil {
		return err
	}
	if err := json.Unmarshal(data, id); err != nil {
		return fmt.Errorf("%s: content is not an object: %w", key, err)
	}
	return id.check(key, data)
}

// check checks that a decoded object is the one that a key names.
func (id *identity) check(key resource.Key, data []byte) error {
	if string(bytes.TrimSpace(data)) == "null" { // which decodes without an error
		return fmt.Errorf("%s: there is no object in the message", key)
	}
	if id.ErrStatus != nil {
		return fmt.Errorf("%s: content is an error, not an object", key)
	}
	if name := id.Metadata.Name; key.Type != resource.TypeServiceAccountToken && name != "" && name != key.Name {
		return fmt.Errorf("%s: content is an object of the name %q", key, name)
	}
	if ns := id.Metadata.Namespace; ns != "" && ns != key.Namespace {
		return fmt.Errorf("%s: content is an object of the namespace %q", key, ns)
	}
	return nil
}

// older reports whether an object is an older version of the stored one. Another UID is another object, and versions
// that are not numbers cannot be compared: then the last one counts.
func (id *identity) older(stored []byte) bool {
	same, older := id.compare(stored)
	return same && older
}

// compare reports whether an object is the stored one, in whatever version, and if so, whether it is older.
func (id *identity) compare(stored []byte) (same, older bool) {
	var old identity
	if json.Unmarshal(stored, &old) != nil || old.Metadata.UID != id.Metadata.UID {
		return false, false
	}
	now, err1 := strconv.ParseUint(id.Metadata.ResourceVersion, 10, 64)
	then, err2 := strconv.ParseUint(old.Metadata.ResourceVersion, 10, 64)
	return true, err1 == nil && err2 == nil && now < then
}
