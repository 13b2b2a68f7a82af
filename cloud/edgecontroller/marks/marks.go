// Package marks has the names of the labels, annotations and conditions with which cloudcore and its users mark Nodes
// and pods.
package marks

import v1 "k8s.io/api/core/v1"

// EdgeLabel marks the nodes of edges; its value is empty.
const EdgeLabel = "node-role.kubernetes.io/edge"

// CloudcoreAnnotation on a Node is the address of the cloudcore that the node is connected to.
const CloudcoreAnnotation = "cloudcore"

// DuplicateDevice is the condition of a Node whose certificate two devices use. Only cloudcores write it. It comes with
// an event of the same reason.
const DuplicateDevice v1.NodeConditionType = "DuplicateDevice"

// InstanceAnnotation on a Node says which run of the device's agent connected last, and when (cloudhub.Record). Only
// cloudcores write it: nodes cannot change it.
const InstanceAnnotation = "edgecore.io/instance"

// AgentLabel is a label that edge nodes set in addition to EdgeLabel.
const AgentLabel = "node-role.kubernetes.io/agent"

// KeepEvictions is an annotation on a pod or its node that, set to "true", leaves a pod's tolerations alone: the pod is
// then evicted, as on any node, some minutes after its node became unreachable. It applies to pods bound later;
// tolerations that were already changed stay.
const KeepEvictions = "edgecore.io/keep-evictions"
