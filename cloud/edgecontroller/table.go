package edgecontroller

import (
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// requestTypes returns the table in docs/wire.md, Requests of the node.
func (q *requests) requestTypes(hub requestHub) map[requestName]requestType {
	known := &knownPods{own: q.own, caches: q.caches}
	late := &lateStatuses{own: q.own, caches: q.caches, recent: q.recent, hub: hub}
	nodes := &nodeHandlers{
		asNode:     q.asNode,
		own:        q.own,
		caches:     q.caches,
		sessions:   q.sessions,
		endpoints:  q.endpoints,
		hub:        hub,
		localIP:    q.localIP,
		nodeLabels: q.nodeLabels,
	}
	pods := &podHandlers{
		asNode:   q.asNode,
		own:      q.own,
		pods:     known,
		late:     late,
		whole:    q.whole,
		reported: q.reported,
	}
	old := &legacyHandlers{
		asNode:         q.asNode,
		own:            q.own,
		nodes:          nodes,
		pods:           pods,
		late:           late,
		endpoints:      q.endpoints,
		hub:            hub,
		awaitRateLimit: q.awaitRateLimit,
	}
	leases := &leaseHandlers{asNode: q.asNode}
	contents := &contentHandlers{asNode: q.asNode, caches: q.caches, content: q.content}
	tokens := &tokenHandlers{asNode: q.asNode, pods: known}
	reads := &readHandlers{asNode: q.asNode}
	certificates := &certificateHandlers{asNode: q.asNode, caches: q.caches}
	reviews := &reviewHandlers{asNode: q.asNode, reviews: &reviews{asNode: q.asNode, own: q.own}}
	events := &eventHandlers{asNode: q.asNode, pods: known}
	medium, large := mediumContent(), largeContent()
	return map[requestName]requestType{
		{resource.TypeNode, model.OpInsert}:                 {serve: nodes.registerNode, objectResp: true, limit: large},
		{resource.TypeNode, model.OpQuery}:                  {serve: nodes.queryNode},
		{resource.TypeNode, model.OpUpdate}:                 {serve: nodes.updateNode, limit: large},
		{resource.TypeNodePatch, model.OpPatch}:             {serve: nodes.patchNodeStatus, objectResp: true, limit: large},
		{resource.TypeNodeStatus, model.OpInsert}:           {serve: old.registerOldNode, limit: large},
		{resource.TypeNodeStatus, model.OpUpdate}:           {serve: old.updateOldNodeStatus, limit: large},
		{resource.TypeLease, model.OpQuery}:                 {serve: leases.queryLease, objectResp: true},
		{resource.TypeLease, model.OpInsert}:                {serve: leases.createLease, objectResp: true},
		{resource.TypeLease, model.OpUpdate}:                {serve: leases.updateLease, objectResp: true},
		{resource.TypePod, model.OpQuery}:                   {serve: pods.queryPod},
		{resource.TypePod, model.OpInsert}:                  {serve: pods.createMirrorPod, objectResp: true, limit: large},
		{resource.TypePod, model.OpDelete}:                  {serve: pods.deletePod},
		{resource.TypePodPatch, model.OpPatch}:              {serve: pods.patchPodStatus, objectResp: true, limit: large},
		{resource.TypePodStatus, model.OpUpdate}:            {serve: old.updateOldPodStatus, unnamed: true, limit: large},
		{resource.TypeConfigMap, model.OpQuery}:             {serve: contents.queryConfigMap},
		{resource.TypeSecret, model.OpQuery}:                {serve: contents.querySecret},
		{resource.TypeServiceAccountToken, model.OpQuery}:   {serve: tokens.requestToken},
		{resource.TypePersistentVolume, model.OpQuery}:      {serve: reads.queryPersistentVolume},
		{resource.TypePersistentVolumeClaim, model.OpQuery}: {serve: reads.queryPersistentVolumeClaim},
		{resource.TypePersistentVolumeClaim, model.OpPatch}: {serve: reads.patchClaimStatus, objectResp: true},
		{resource.TypeVolumeAttachment, model.OpQuery}:      {serve: reads.queryVolumeAttachment},
		{resource.TypeRuntimeClass, model.OpQuery}:          {serve: reads.queryRuntimeClass},
		{resource.TypeCSIDriver, model.OpQuery}:             {serve: reads.queryCSIDriver},
		{resource.TypeCSINode, model.OpQuery}:               {serve: reads.queryCSINode},
		{resource.TypeCSINode, model.OpInsert}:              {serve: reads.createCSINode, objectResp: true, limit: medium},
		{resource.TypeCSINode, model.OpUpdate}:              {serve: reads.updateCSINode, objectResp: true, limit: medium},
		{resource.TypeClusterTrustBundle, model.OpQuery}:    {serve: reads.queryClusterTrustBundle, unnamed: true},
		{resource.TypeCSR, model.OpInsert}:                  {serve: certificates.createCSR, objectResp: true},
		{resource.TypeCSR, model.OpQuery}:                   {serve: certificates.queryCSR},
		{resource.TypeTokenReview, model.OpInsert}:          {serve: reviews.reviewToken, objectResp: true, limit: medium},
		{resource.TypeAccessReview, model.OpInsert}:         {serve: reviews.reviewAccess, objectResp: true, limit: medium},
		{resource.TypeClientCA, model.OpQuery}:              {serve: reviews.queryClientCA},
		{resource.TypeService, model.OpQuery}:               {serve: reads.queryService},
		{resource.TypeEndpoints, model.OpQuery}:             {serve: reads.queryEndpoints},
		{resource.TypeEvent, model.OpInsert}:                {serve: events.createEvent, silent: true, limit: medium},
		{resource.TypeEvent, model.OpUpdate}:                {serve: events.updateEvent, silent: true, limit: medium},
		{resource.TypeEvent, model.OpPatch}:                 {serve: events.patchEvent, silent: true, limit: medium},
	}
}
