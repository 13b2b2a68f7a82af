// Package metaclient is edged's client of metamanager: it queries desired state and reports observed state, over the
// bus. An answer comes from the store on this device; a report is durable when the call returns. No call depends on a
// link to the cloud.
package metaclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// timeout bounds one question; metamanager answers from its store, so this is never reached
// unless the disk hangs.
const timeout = 30 * time.Second

// Bus is what the client needs of beehive.
type Bus interface {
	SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error)
}

// Client asks metamanager. Its methods may be called from any goroutine.
type Client struct{ bus Bus }

// New makes a client on a bus that has a metamanager.
func New(bus Bus) *Client { return &Client{bus: bus} }

// Pods returns every pod in the store. Rows that do not decode are returned as an error beside
// the good ones: one damaged row must not stop the others.
func (c *Client) Pods(ctx context.Context) ([]*v1.Pod, error) {
	key := resource.Key{Namespace: resource.NullNamespace, Type: resource.TypePodList}
	data, err := c.request(ctx, model.OpQuery, key, nil)
	if err != nil {
		return nil, err
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("list of stored pods: %w", err)
	}
	var pods []*v1.Pod
	var errs []error
	for _, r := range raw {
		pod, err := DecodePod(r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		pods = append(pods, pod)
	}
	return pods, errors.Join(errs...)
}

// DecodePod decodes a pod of a message, and refuses one without the names that everything hangs on.
func DecodePod(data []byte) (*v1.Pod, error) {
	pod := &v1.Pod{}
	if err := json.Unmarshal(data, pod); err != nil {
		return nil, fmt.Errorf("decode pod: %w", err)
	}
	if pod.Name == "" || pod.Namespace == "" || pod.UID == "" {
		return nil, fmt.Errorf("decode pod %q in namespace %q: it has no name, no namespace or no UID", pod.Name,
			pod.Namespace)
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return pod, nil
}

// ConfigMap returns a stored configmap; apierrors.IsNotFound tells a missing one.
func (c *Client) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return Get[v1.ConfigMap](ctx, c, resource.Key{Namespace: namespace, Type: resource.TypeConfigMap, Name: name})
}

// Secret returns a stored secret; apierrors.IsNotFound tells a missing one.
func (c *Client) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return Get[v1.Secret](ctx, c, resource.Key{Namespace: namespace, Type: resource.TypeSecret, Name: name})
}

// cloudFirst is the content of a question for which metamanager is to ask the cloud, though an answer is stored.
const cloudFirst = `{"cloudFirst":true}`

// VolumeSecret returns a secret that a volume names and no pod, so that the cloud does not tell of its changes: as the
// cloud has it, or as it was when there was a link. apierrors.IsNotFound tells a missing one.
func (c *Client) VolumeSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return get[v1.Secret](ctx, c, resource.Key{Namespace: namespace, Type: resource.TypeSecret, Name: name},
		json.RawMessage(cloudFirst))
}

// Get returns the object of a key or, for a key without a name and a slice as T, all objects of its type.
// apierrors.IsNotFound means that it does not exist, and apierrors.IsServiceUnavailable that this is unknown while the
// cloud is unreachable.
func Get[T any](ctx context.Context, c *Client, key resource.Key) (*T, error) {
	return get[T](ctx, c, key, nil)
}

func get[T any](ctx context.Context, c *Client, key resource.Key, content json.RawMessage) (*T, error) {
	data, err := c.request(ctx, model.OpQuery, key, content)
	if err != nil {
		return nil, err
	}
	obj := new(T)
	if err := json.Unmarshal(data, obj); err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	return obj, nil
}

// PodStatuses returns the last reported status of each pod, by UID. Rows that do not decode are
// left out: a status is recreated from the runtime.
func (c *Client) PodStatuses(ctx context.Context) (map[types.UID]v1.PodStatus, error) {
	rows, err := c.statusRows(ctx)
	if err != nil {
		return nil, err
	}
	statuses := make(map[types.UID]v1.PodStatus, len(rows))
	for _, row := range rows {
		if uid, status, err := readPatch([]byte(row.Value)); err == nil && uid != "" {
			statuses[uid] = status
		}
	}
	return statuses, nil
}

// statusRow is a stored status.
type statusRow struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (c *Client) statusRows(ctx context.Context) ([]statusRow, error) {
	data, err := c.request(ctx, model.OpQuery, resource.Key{
		Namespace: resource.NullNamespace, Type: resource.TypePodPatchList,
	}, nil)
	if err != nil {
		return nil, err
	}
	var rows []statusRow
	if err := json.Unmarshal(data, &rows); err != nil {
		return nil, fmt.Errorf("list of stored pod statuses: %w", err)
	}
	return rows, nil
}

// StatusOwners returns the pods that have stored statuses, with only their names and UIDs. A row that does not decode
// has no UID.
func (c *Client) StatusOwners(ctx context.Context) ([]*v1.Pod, error) {
	rows, err := c.statusRows(ctx)
	if err != nil {
		return nil, err
	}
	var owners []*v1.Pod
	for _, row := range rows {
		key, err := resource.Parse(row.Key)
		if err != nil || key.Name == "" {
			continue
		}
		uid, _, _ := readPatch([]byte(row.Value))
		owners = append(owners, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid},
		})
	}
	return owners, nil
}

// ReportStatus stores a pod's status and queues it for the cloud; it is durable on return.
func (c *Client) ReportStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	return c.putStatus(ctx, model.OpPatch, resource.TypePodPatch, pod, status)
}

// KeepStatus stores the status of a pod that the cloud does not know; it is durable on return.
func (c *Client) KeepStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	return c.putStatus(ctx, model.OpUpdate, resource.TypePodStatus, pod, status)
}

func (c *Client) putStatus(ctx context.Context, operation, typ string, pod *v1.Pod, status v1.PodStatus) error {
	text, err := writePatch(pod.UID, status)
	if err != nil {
		return fmt.Errorf("encode status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	content, err := json.Marshal(string(text)) // on the wire a patch is a string
	if err != nil {
		return err
	}
	_, err = c.request(ctx, operation, resource.Key{Namespace: pod.Namespace, Type: typ, Name: pod.Name}, content)
	return err
}

// ForgetStatus removes the stored status of a pod that is gone. That of another pod of the name stays; a pod without a
// UID stands for any.
func (c *Client) ForgetStatus(ctx context.Context, pod *v1.Pod) error {
	content, err := json.Marshal(metav1.Preconditions{UID: &pod.UID})
	if err != nil {
		return err
	}
	_, err = c.request(ctx, model.OpDelete, resource.Key{
		Namespace: pod.Namespace, Type: resource.TypePodStatus, Name: pod.Name,
	}, content)
	return err
}

// ReportDeleted queues for the cloud that a deleted pod has ended and holds nothing any more; durable on return.
func (c *Client) ReportDeleted(ctx context.Context, pod *v1.Pod) error {
	content, err := json.Marshal(metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0),
		Preconditions:      &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil {
		return err
	}
	key := resource.Key{Namespace: pod.Namespace, Type: resource.TypePod, Name: pod.Name}
	_, err = c.request(ctx, model.OpDelete, key, content)
	return err
}

// request sends one request and returns the content of the answer, or the error that it carries.
func (c *Client) request(
	ctx context.Context, operation string, key resource.Key, content json.RawMessage,
) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m := model.New(model.ModuleEdged, model.GroupMeta, operation, key.String(), content)
	answer, err := c.bus.SendSync(ctx, model.ModuleMetaManager, m)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", operation, key, err)
	}
	if answer.Route.Operation == model.OpError {
		return nil, fmt.Errorf("%s %s: %s", operation, key, answer.ContentData())
	}
	data := answer.ContentData()
	if err := statusError(data); err != nil {
		return nil, err
	}
	return data, nil
}

// statusError returns the API error that an answer carries instead of an object, if it does.
func statusError(data []byte) error {
	var e struct {
		ErrStatus *metav1.Status `json:"ErrStatus"`
	}
	// It comes first, where it comes at all: objects need not be decoded twice to find out.
	if !bytes.Contains(data[:min(len(data), 64)], []byte(`"ErrStatus"`)) || json.Unmarshal(data, &e) != nil ||
		e.ErrStatus == nil {
		return nil
	}
	if e.ErrStatus.Code == 0 {
		e.ErrStatus.Code = http.StatusInternalServerError
	}
	return &apierrors.StatusError{ErrStatus: *e.ErrStatus}
}
