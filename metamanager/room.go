package metamanager

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/memsize"
	"github.com/edgecore-io/edgecore/pkg/refused"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// The pods of a node are in the agent's memory, and its pods, ConfigMaps and Secrets in the store. Their decoded bytes
// are limited, whoever sends them, so that no cloud and no tenant can fill a small device:
//
//   - What is stored stays, also if it is more than the limit: the store of an older version. A change that makes an
//     object larger is left out if it does not fit, except that its deletion counts.
//   - A pod that does not fit is refused for good, as a kubelet refuses a pod at its admission. A ConfigMap or a Secret
//     is asked for again once there is room. Of either, a stub is stored (package refused), so that the decision
//     survives restarts and a cloud of ours does not send it again.
//   - A namespace may have 5/8 of the limit, and all 3/4. A namespace with no more than a 32nd may have some of another
//     eighth. The last eighth is for critical pods, and for ConfigMaps and Secrets of kube-system.
const (
	// A 16th of the device's memory for pods, and an eighth for ConfigMaps and Secrets, between these bounds.
	podBytesLeast, podBytesMost       = 32 << 20, 256 << 20
	objectBytesLeast, objectBytesMost = 64 << 20, 512 << 20
)

// criticalPriority is the priority of system-cluster-critical.
const criticalPriority = 2_000_000_000

// rooms are the limits of a node.
type rooms struct {
	pods, objects room

	mu     sync.Mutex
	loaded bool
	// full are the objects that Options.NoRoom was told of.
	full map[string]bool
}

func (r *rooms) init(memory int64) {
	r.pods.most = int(min(max(memory/16, podBytesLeast), podBytesMost))
	r.objects.most = int(min(max(memory/8, objectBytesLeast), objectBytesMost))
}

// limited reports whether there is a limit for a type.
func limited(typ string) bool {
	return typ == resource.TypePod || typ == resource.TypeConfigMap || typ == resource.TypeSecret
}

// forType returns the room for a type; nil for a type without a limit.
func (r *rooms) forType(typ string) *room {
	switch typ {
	case resource.TypePod:
		return &r.pods
	case resource.TypeConfigMap, resource.TypeSecret:
		return &r.objects
	}
	return nil
}

// room counts what is stored of some types.
type room struct {
	mu   sync.Mutex
	most int
	held map[string]counted
	all  int
	// byNamespace are the parts of namespaces in all.
	byNamespace map[string]int
}

// counted is a stored object.
type counted struct {
	namespace, uid string
	size           int
	// refused: it is a stub.
	refused bool
	// critical: it may have what is left for nobody else.
	critical bool
}

func (r *room) get(key string) (h counted, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, ok = r.held[key]
	return h, ok
}

// set counts what is stored under a key now; nil is nothing.
func (r *room) set(key string, h *counted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(key, h)
}

func (r *room) put(key string, h *counted) {
	if before, ok := r.held[key]; ok {
		r.all -= before.size
		if r.byNamespace[before.namespace] -= before.size; r.byNamespace[before.namespace] == 0 {
			delete(r.byNamespace, before.namespace)
		}
		delete(r.held, key)
	}
	if h == nil {
		return
	}
	if r.held == nil {
		r.held, r.byNamespace = map[string]counted{}, map[string]int{}
	}
	r.held[key] = *h
	r.all += h.size
	r.byNamespace[h.namespace] += h.size
}

// reserve counts an object if it fits in place of what is stored under its key. Otherwise it returns why it does not.
func (r *room) reserve(key string, h counted) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fits(key, h); err != nil {
		return err
	}
	r.put(key, &h)
	return nil
}

// check is take without counting the object.
func (r *room) check(key string, h counted) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fits(key, h)
}

func (r *room) fits(key string, h counted) error {
	before := r.held[key]
	all, own := r.all-before.size+h.size, r.byNamespace[h.namespace]+h.size
	if before.namespace == h.namespace {
		own -= before.size
	}
	switch {
	case h.size <= before.size:
		return nil
	case h.critical && all <= r.most:
		return nil
	case own <= r.most/32 && all <= r.most/8*7:
		return nil
	case own <= r.most/8*5 && all <= r.most/4*3:
		return nil
	}
	return &noRoom{h, own - h.size, all - h.size, r.most}
}

// noRoom is why an object is refused.
type noRoom struct {
	counted
	own, all, most int
}

func (n *noRoom) Error() string {
	return fmt.Sprintf("it takes %d bytes, and there is no room for it on this node: namespace %s has %d bytes here "+
		"and all namespaces have %d, of %d and %d", n.size, n.namespace, n.own, n.all, n.most/8*5, n.most/4*3)
}

// podSize returns the bytes of a decoded pod, or of its text if that is more.
func podSize(pod *v1.Pod, text []byte) int {
	return max(int(reflect.TypeFor[v1.Pod]().Size())+memsize.Of(reflect.ValueOf(pod).Elem()), len(text))
}

// sized is an object with its size. pod is set for pods.
type sized struct {
	counted
	meta metav1.ObjectMeta
	pod  *v1.Pod
	stub refused.Stub
	// errStatus is there if it is an error and no object.
	errStatus json.RawMessage
}

// measure decodes an object as far as its size needs. The number of its elements was checked.
func measure(key resource.Key, data []byte) (*sized, error) {
	s := &sized{}
	if key.Type == resource.TypePod {
		s.pod = &v1.Pod{}
		// Pointers to the fields would not do: null replaces them, and a second value is not the pod's then.
		text := struct {
			*v1.Pod
			ErrStatus json.RawMessage `json:"ErrStatus"`
		}{Pod: s.pod}
		if err := json.Unmarshal(data, &text); err != nil {
			return s, fmt.Errorf("%s: content is not a pod: %w", key, err)
		}
		s.meta, s.size, s.errStatus = s.pod.ObjectMeta, podSize(s.pod, data), text.ErrStatus
		s.critical = s.pod.Spec.Priority != nil && *s.pod.Spec.Priority >= criticalPriority
	} else {
		var text struct {
			Metadata  metav1.ObjectMeta `json:"metadata"`
			ErrStatus json.RawMessage   `json:"ErrStatus"`
		}
		if err := json.Unmarshal(data, &text); err != nil {
			return s, fmt.Errorf("%s: content is not an object: %w", key, err)
		}
		s.meta, s.size, s.errStatus = text.Metadata, len(data), text.ErrStatus
		s.critical = key.Namespace == metav1.NamespaceSystem
	}
	s.namespace, s.uid = key.Namespace, string(s.meta.UID)
	s.stub, s.refused = refused.Of(s.meta.Annotations)
	return s, nil
}

// replaced is what an object of the cloud becomes.
type replaced struct {
	// data is what is to be stored; nil leaves what is stored. whole: it is the object as the cloud has sent it.
	data  []byte
	whole bool
	// undo counts again what was counted before, if data was not stored.
	undo func()
}

// makeRoom decides what is to be stored of an object that the cloud has sent, and counts it. It is called in the
// object's turn.
func (m *Module) makeRoom(ctx context.Context, in *incoming) (replaced, error) {
	r := m.rooms.forType(in.key.Type)
	if r == nil {
		return replaced{data: in.data, whole: true, undo: func() {}}, nil
	}
	if err := m.loadRooms(ctx); err != nil {
		return replaced{}, err
	}
	name := in.key.String()
	before, had := r.get(name)
	undo := func() {
		if r.set(name, nil); had {
			r.set(name, &before)
		}
	}
	s := in.sized
	if s.refused {
		return replaced{}, fmt.Errorf("%s: content has an annotation that only this node sets", in.key)
	}
	same := had && before.uid == s.uid
	if same && before.refused && in.key.Type == resource.TypePod { // it was reported as failed
		stored, err := m.stored(ctx, in.key)
		if err != nil {
			return replaced{}, err
		}
		data, err := m.refuse(in.key, s, in.data, stored.stub.Message)
		return replaced{data: data, undo: undo}, err
	}
	why := r.reserve(name, s.counted)
	m.noteRoom(name, why)
	if why == nil {
		return replaced{data: in.data, whole: true, undo: undo}, nil
	}
	if same && !before.refused {
		klog.ErrorS(why, "Change of an object left out; the node keeps the version that it has", "resource", name)
		return m.keepStored(ctx, in.key, s)
	}
	klog.ErrorS(why, "Object refused", "resource", name)
	data, err := m.refuse(in.key, s, in.data, why.Error()+remedy(in.key.Type))
	return replaced{data: data, undo: undo}, err
}

func remedy(typ string) string {
	if typ == resource.TypePod {
		return "; make the pod smaller (env, args, annotations), or delete pods of this node, also those that have " +
			"ended"
	}
	return "; make it smaller, or delete ConfigMaps, Secrets and pods that need them on this node"
}

// refuse returns the stub of an object, and counts it.
func (m *Module) refuse(key resource.Key, s *sized, data []byte, message string) ([]byte, error) {
	version, err := wire.Version(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	stub := refused.Stub{Size: s.size, Version: version, Message: message}
	var out any = stub.Object(&s.meta)
	h := s.counted
	h.refused = true
	if s.pod != nil {
		pod := stub.Pod(s.pod)
		out = pod
		data, err = json.Marshal(pod)
		h.size = podSize(pod, data)
	} else {
		data, err = json.Marshal(out)
		h.size = len(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	m.rooms.forType(key.Type).set(key.String(), &h)
	return data, nil
}

// keepStored returns the stored version of an object whose newer version does not fit. If that is being deleted, so is
// the stored one.
func (m *Module) keepStored(ctx context.Context, key resource.Key, newer *sized) (replaced, error) {
	none := replaced{undo: func() {}}
	if key.Type != resource.TypePod || newer.meta.DeletionTimestamp == nil {
		return none, nil
	}
	stored, err := m.stored(ctx, key)
	if err != nil {
		return none, err
	}
	pod := stored.pod
	pod.DeletionTimestamp = newer.meta.DeletionTimestamp
	pod.DeletionGracePeriodSeconds = newer.meta.DeletionGracePeriodSeconds
	pod.ResourceVersion = newer.meta.ResourceVersion
	none.data, err = json.Marshal(pod)
	return none, err
}

// stored returns a stored object.
func (m *Module) stored(ctx context.Context, key resource.Key) (*sized, error) {
	row, err := m.store.Get(ctx, key.String())
	if err != nil {
		return nil, err
	}
	return measure(key, row.Value)
}

// roomGone stops counting an object that is not stored any more.
func (m *Module) roomGone(ctx context.Context, key resource.Key) {
	r := m.rooms.forType(key.Type)
	if r == nil || m.loadRooms(ctx) != nil {
		return
	}
	r.set(key.String(), nil)
	m.noteRoom(key.String(), nil)
}

// fullMost bounds the objects that Options.NoRoom is told of.
const fullMost = 100

// noteRoom calls Options.NoRoom if the newest version of an object does not fit, and with nil once that is over.
func (m *Module) noteRoom(object string, why error) {
	m.rooms.mu.Lock()
	defer m.rooms.mu.Unlock()
	known := m.rooms.full[object]
	switch {
	case why != nil && (known || len(m.rooms.full) < fullMost):
		if m.rooms.full == nil {
			m.rooms.full = map[string]bool{}
		}
		m.rooms.full[object] = true
		m.opts.NoRoom(object, why)
	case why == nil && known:
		delete(m.rooms.full, object)
		m.opts.NoRoom(object, nil)
	}
}

// stubAnswer returns the answer to a query whose stored value is the stub of a ConfigMap or a Secret: "not found" if
// there is room now, so that the cloud is asked, and "too large" otherwise. For any other value it returns nil.
func (m *Module) stubAnswer(ctx context.Context, key resource.Key, value []byte) (json.RawMessage, error) {
	if key.Type == resource.TypePod || m.rooms.forType(key.Type) == nil || !bytes.Contains(value, []byte(`"refused: `)) {
		return nil, nil
	}
	s, err := measure(key, value)
	if err != nil || !s.refused {
		return nil, err
	}
	if err := m.loadRooms(ctx); err != nil {
		return nil, err
	}
	whole := s.counted
	whole.size = s.stub.Size
	if m.rooms.forType(key.Type).check(key.String(), whole) == nil {
		return notFound(key)
	}
	return tooLargeAnswer(key, s.stub.Message)
}

// tooLargeAnswer is the answer about an object that does not fit.
func tooLargeAnswer(key resource.Key, message string) (json.RawMessage, error) {
	return json.Marshal(map[string]metav1.Status{"ErrStatus": {
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonRequestEntityTooLarge,
		Code:    http.StatusRequestEntityTooLarge,
		Message: fmt.Sprintf("%s %q in namespace %s is too large: %s", key.Type, key.Name, key.Namespace, message),
		Details: &metav1.StatusDetails{Name: key.Name, Kind: key.Type},
	}})
}

// refusedAnswer returns the answer to a query for an object that the cloud has just sent and that does not fit. data is
// its stub; err says that the stub could not be stored.
func (m *Module) refusedAnswer(key resource.Key, data []byte, err error) (json.RawMessage, error) {
	s, bad := measure(key, data)
	if bad != nil {
		return nil, bad
	}
	answer, bad := tooLargeAnswer(key, s.stub.Message)
	return answer, errors.Join(err, bad)
}

// loadRooms counts what is stored, once.
func (m *Module) loadRooms(ctx context.Context) error {
	m.rooms.mu.Lock()
	defer m.rooms.mu.Unlock()
	if m.rooms.loaded {
		return nil
	}
	for _, typ := range []string{resource.TypePod, resource.TypeConfigMap, resource.TypeSecret} {
		r := m.rooms.forType(typ)
		err := m.store.Each(ctx, typ, func(row store.Meta) error {
			key, err := resource.Parse(row.Key)
			if err != nil {
				return nil
			}
			h := counted{namespace: key.Namespace, size: len(row.Value)}
			if checkElements(key, row.Value) == nil {
				if s, err := measure(key, row.Value); err == nil {
					h = s.counted
				}
			}
			r.set(row.Key, &h)
			return nil
		})
		if err != nil {
			return err
		}
	}
	if m.rooms.pods.all > m.rooms.pods.most {
		m.trimPods(ctx)
	}
	m.rooms.loaded = true
	return nil
}

// oldPod is a pod in the store of an older version that has more than fits.
type oldPod struct {
	key     string
	created time.Time
	counted
	ended bool
}

// trimPods stores stubs of pods that do not run, where an older version has stored more than fits: first of those that
// have ended, and then of those that never started, the newest first. Pods that run, or may, stay whole.
func (m *Module) trimPods(ctx context.Context) {
	r := &m.rooms.pods
	phases := map[string]v1.PodPhase{}
	err := m.store.Each(ctx, resource.TypePodPatch, func(row store.Meta) error {
		var patch struct {
			Metadata struct {
				UID string `json:"uid"`
			} `json:"metadata"`
			Status struct {
				Phase v1.PodPhase `json:"phase"`
			} `json:"status"`
		}
		if json.Unmarshal(row.Value, &patch) == nil {
			phases[patch.Metadata.UID] = patch.Status.Phase
		}
		return nil
	})
	var old []oldPod
	if err == nil {
		err = m.store.Each(ctx, resource.TypePod, func(row store.Meta) error {
			var id struct {
				Metadata metav1.ObjectMeta `json:"metadata"`
			}
			h := r.held[row.Key]
			phase, started := phases[h.uid]
			ended := phase == v1.PodSucceeded || phase == v1.PodFailed
			if h.refused || h.uid == "" || started && !ended || json.Unmarshal(row.Value, &id) != nil ||
				id.Metadata.Annotations[v1.MirrorPodAnnotationKey] != "" {
				return nil
			}
			old = append(old, oldPod{row.Key, id.Metadata.CreationTimestamp.Time, h, ended})
			return nil
		})
	}
	if err != nil {
		klog.ErrorS(err, "Pods of the store not read; it has more of them than fits")
		return
	}
	smallsort.SortFunc(old, func(a, b oldPod) int {
		if a.ended != b.ended {
			if a.ended {
				return -1
			}
			return 1
		}
		if a.critical != b.critical {
			if b.critical {
				return -1
			}
			return 1
		}
		return cmp.Or(b.created.Compare(a.created), cmp.Compare(b.key, a.key))
	})
	for _, p := range old {
		if r.all <= r.most {
			return
		}
		if err := m.trimPod(ctx, p); err != nil {
			klog.ErrorS(err, "Pod not trimmed; the store has more pods than fits", "pod", p.key)
		}
	}
}

func (m *Module) trimPod(ctx context.Context, p oldPod) error {
	key, err := resource.Parse(p.key)
	if err != nil {
		return err
	}
	row, err := m.store.Get(ctx, p.key)
	if err != nil {
		return err
	}
	s, err := measure(key, row.Value)
	if err != nil {
		return err
	}
	why := &noRoom{s.counted, m.rooms.pods.byNamespace[p.namespace], m.rooms.pods.all, m.rooms.pods.most}
	data, err := m.refuse(key, s, row.Value, why.Error()+remedy(key.Type))
	if err != nil {
		return err
	}
	klog.InfoS("Pod of an older version's store trimmed: there are more than fit", "pod", p.key, "ended", p.ended,
		"bytes", s.size)
	return m.apply(ctx, key, store.Upsert(store.Meta{Key: p.key, Type: key.Type, Value: data}))
}

// withContent returns a message with another content.
func withContent(msg *model.Message, data []byte) *model.Message {
	out := *msg
	out.Content = data
	return &out
}
