package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

const (
	// instanceRate and instanceBurst limit how many Nodes a second this cloudcore annotates.
	instanceRate, instanceBurst = 20, 100
	// maxRaces is how often writing an annotation is retried at once because the Node changed meanwhile.
	maxRaces = 10
)

// instances writes which run of each connected node's agent connected last, so that every cloudcore knows. Nothing is
// written while that stays the same: neither on reconnects nor when cloudcore restarts.
type instances struct {
	Access
	keyqueue.Queue
	limit *rate.Limiter
	hub   instanceHub
}

// instanceHub is what instances needs from the hub.
type instanceHub interface {
	// Recorded passes on a Node's InstanceAnnotation, and ToRecord returns what it must become; see
	// edgecontroller.Hub.
	Recorded(node string, r cloudhub.Record)
	ToRecord(node string, have cloudhub.Record) (next cloudhub.Record, wait time.Duration, ok bool)
}

func newInstances(a Access) *instances {
	i := &instances{Access: a, limit: rate.NewLimiter(instanceRate, instanceBurst)}
	i.Queue = keyqueue.New("node", i.sync, "Node not annotated with its agent's instance, so two devices with one "+
		"certificate may not be noticed; it is tried again")
	i.Remedy = "cloudcore is not allowed to; apply deploy/cloudcore/base/policy.yaml and the other manifests of this " +
		"version of cloudcore"
	return i
}

// start sets the hub, before run.
func (i *instances) start(hub instanceHub) { i.hub = hub }

func recordOf(node *v1.Node) cloudhub.Record {
	return cloudhub.ParseRecord(node.Annotations[marks.InstanceAnnotation])
}

// nodeChanged passes a Node's record to the hub if it is new.
func (i *instances) nodeChanged(old, now *v1.Node) {
	if old != nil && old.UID == now.UID &&
		old.Annotations[marks.InstanceAnnotation] == now.Annotations[marks.InstanceAnnotation] {
		return
	}
	i.hub.Recorded(now.Name, recordOf(now))
	if i.Sessions.ConnectedHere(now.Name) {
		i.Keys.Add(now.Name)
	}
}

// sync writes a node's record if it must change. It replaces only the record that was read, never a newer one.
func (i *instances) sync(ctx context.Context, name string) error {
	node := i.Caches.Node(name)
	for range maxRaces {
		if node == nil {
			return nil // registration writes it
		}
		have := recordOf(node)
		i.hub.Recorded(name, have)
		next, wait, ok := i.hub.ToRecord(name, have)
		if !ok {
			return nil
		}
		if wait > 0 {
			i.Keys.AddAfter(name, wait)
			return nil
		}
		if err := i.limit.Wait(ctx); err != nil {
			return err
		}
		err := i.write(ctx, node, next)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			i.hub.Recorded(name, next)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("annotate node %s with the instance of its agent: %w", name, err)
		}
		if node, err = i.read(ctx, name); err != nil {
			return err
		}
	}
	return fmt.Errorf("annotate node %s with the instance of its agent: the Node keeps changing", name)
}

func (i *instances) write(ctx context.Context, node *v1.Node, r cloudhub.Record) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion,
		"annotations": map[string]string{marks.InstanceAnnotation: r.String()},
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(apihealth.ForNode(ctx, node.Name), keyqueue.Timeout)
	defer cancel()
	_, err = i.Own.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// read returns the Node of a device, or nil.
func (i *instances) read(ctx context.Context, name string) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, keyqueue.Timeout)
	defer cancel()
	node, err := i.Own.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read node %s, whose annotations are to change: %w", name, err)
	}
	if value, edge := node.Labels[marks.EdgeLabel]; !edge || value != "" {
		return nil, nil
	}
	return node, nil
}
