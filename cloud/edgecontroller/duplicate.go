package edgecontroller

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Duplicate records an event of a node whose certificate two devices use, in the node's name. An error is logged.
func (c *Controller) Duplicate(ctx context.Context, node, message string) {
	ctx, cancel := context.WithTimeout(withNode(ctx, node), c.options.RequestTimeout)
	defer cancel()
	now := metav1.Now()
	about := v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)} // as the kubelet's are
	_, err := c.clients.AsNode.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", node, now.UnixNano()),
			Namespace: metav1.NamespaceDefault,
		},
		InvolvedObject: about,
		Reason:         "DuplicateDevice",
		Message:        message,
		Type:           v1.EventTypeWarning,
		Count:          1,
		FirstTimestamp: now,
		LastTimestamp:  now,
		Source:         v1.EventSource{Component: "cloudcore"},
	}, metav1.CreateOptions{})
	if err != nil {
		klog.InfoS("Event of a duplicate device not recorded", "node", node, "err", err)
	}
}
