package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const annotateDelay = time.Second

// annotator writes the address of this cloudcore into the Nodes of the nodes that connect to it.
type annotator struct {
	Access
	// slots are those of requests.
	slots   slots.Semaphore
	localIP string

	// Set by start.
	ctx   context.Context
	spawn func(func())
}

// start lets connected start goroutines with spawn, until the context ends.
func (n *annotator) start(ctx context.Context, spawn func(func())) { n.ctx, n.spawn = ctx, spawn }

// connected annotates a node that has connected.
func (n *annotator) connected(node string) {
	if n.localIP != "" && n.ctx.Err() == nil {
		n.spawn(func() { n.annotate(n.ctx, node, annotateDelay) })
	}
}

// annotate writes the address of this cloudcore into a Node, in up to three tries. It does nothing if no device's Node
// is known: registration writes it, and a Node of another kind is left alone.
func (n *annotator) annotate(ctx context.Context, node string, delay time.Duration) {
	if have := n.Caches.Node(node); have == nil || have.Annotations[marks.CloudcoreAnnotation] == n.localIP {
		return
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{marks.CloudcoreAnnotation: n.localIP}},
	})
	for try := 0; err == nil; try++ {
		err = func() error {
			leave, err := n.slots.Acquire(ctx)
			if err != nil {
				return err
			}
			defer leave()
			ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, node), n.Timeout)
			defer cancel()
			_, err = n.AsNode.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch,
				metav1.PatchOptions{})
			return err
		}()
		if err == nil || apierrors.IsNotFound(err) || errors.Is(ctx.Err(), context.Canceled) {
			return
		}
		if try == 2 {
			break
		}
		retry.Sleep(ctx, time.Duration(1+try)*delay)
		err = ctx.Err()
	}
	klog.V(1).InfoS("Node not annotated with the cloudcore that it is connected to", "node", node,
		"cloudcore", n.localIP, "err", err)
}
