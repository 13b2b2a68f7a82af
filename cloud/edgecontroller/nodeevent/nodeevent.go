// Package nodeevent records events about Nodes.
package nodeevent

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Record creates a warning event about a Node, as that node. ctx must come from impersonate.WithNode. Errors are
// logged.
func Record(ctx context.Context, asNode kubernetes.Interface, node, reason, message string) {
	now := metav1.Now()
	// like the kubelet's
	about := v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	_, err := asNode.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", node, now.UnixNano()),
			Namespace: metav1.NamespaceDefault,
		},
		InvolvedObject: about,
		Reason:         reason,
		Message:        message,
		Type:           v1.EventTypeWarning,
		Count:          1,
		FirstTimestamp: now,
		LastTimestamp:  now,
		Source:         v1.EventSource{Component: "cloudcore"},
	}, metav1.CreateOptions{})
	if err != nil {
		klog.InfoS("Event of a node not recorded", "node", node, "reason", reason, "err", err)
	}
}
