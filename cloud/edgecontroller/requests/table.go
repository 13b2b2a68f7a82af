package requests

import (
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// requestTypes returns the table in docs/wire.md, Requests of the node.
func (q *Requests) requestTypes(hub Hub) map[requestName]requestType {
	const (
		query, insert, update = model.OpQuery, model.OpInsert, model.OpUpdate
		patch, remove         = model.OpPatch, model.OpDelete
	)
	known := &knownPods{own: q.Own, caches: q.Caches}
	late := &lateStatuses{own: q.Own, caches: q.Caches, recent: q.recent, hub: hub}
	nodes := &nodeHandlers{
		asNode:     q.AsNode,
		own:        q.Own,
		caches:     q.Caches,
		sessions:   q.Sessions,
		endpoints:  q.Endpoints,
		hub:        hub,
		localIP:    q.LocalIP,
		nodeLabels: q.NodeLabels,
	}
	pods := &podHandlers{
		asNode:   q.AsNode,
		own:      q.Own,
		pods:     known,
		late:     late,
		whole:    q.Whole,
		reported: q.Reported,
	}
	old := &legacyHandlers{
		asNode:         q.AsNode,
		own:            q.Own,
		nodes:          nodes,
		pods:           pods,
		late:           late,
		endpoints:      q.Endpoints,
		hub:            hub,
		awaitRateLimit: q.awaitRateLimit,
	}
	leases := &leaseHandlers{asNode: q.AsNode}
	contents := &contentHandlers{asNode: q.AsNode, caches: q.Caches, content: q.Content}
	tokens := &tokenHandlers{asNode: q.AsNode, pods: known}
	reads := &readHandlers{asNode: q.AsNode}
	certificates := &certificateHandlers{asNode: q.AsNode, caches: q.Caches}
	reviews := &reviewHandlers{asNode: q.AsNode, reviews: &Reviews{AsNode: q.AsNode, Own: q.Own}}
	events := &eventHandlers{asNode: q.AsNode, pods: known}
	medium, large := mediumContent(), largeContent()
	return map[requestName]requestType{
		{resource.TypeNode, insert}:                 {serve: nodes.registerNode, objectResp: true, limit: large},
		{resource.TypeNode, query}:                  {serve: nodes.queryNode},
		{resource.TypeNode, update}:                 {serve: nodes.updateNode, limit: large},
		{resource.TypeNodePatch, patch}:             {serve: nodes.patchNodeStatus, objectResp: true, limit: large},
		{resource.TypeNodeStatus, insert}:           {serve: old.registerOldNode, limit: large},
		{resource.TypeNodeStatus, update}:           {serve: old.updateOldNodeStatus, limit: large},
		{resource.TypeLease, query}:                 {serve: leases.queryLease, objectResp: true},
		{resource.TypeLease, insert}:                {serve: leases.createLease, objectResp: true},
		{resource.TypeLease, update}:                {serve: leases.updateLease, objectResp: true},
		{resource.TypePod, query}:                   {serve: pods.queryPod},
		{resource.TypePod, insert}:                  {serve: pods.createMirrorPod, objectResp: true, limit: large},
		{resource.TypePod, remove}:                  {serve: pods.deletePod},
		{resource.TypePodPatch, patch}:              {serve: pods.patchPodStatus, objectResp: true, limit: large},
		{resource.TypePodStatus, update}:            {serve: old.updateOldPodStatus, unnamed: true, limit: large},
		{resource.TypeConfigMap, query}:             {serve: contents.queryConfigMap},
		{resource.TypeSecret, query}:                {serve: contents.querySecret},
		{resource.TypeServiceAccountToken, query}:   {serve: tokens.requestToken},
		{resource.TypePersistentVolume, query}:      {serve: reads.queryPersistentVolume},
		{resource.TypePersistentVolumeClaim, query}: {serve: reads.queryPersistentVolumeClaim},
		{resource.TypePersistentVolumeClaim, patch}: {serve: reads.patchClaimStatus, objectResp: true},
		{resource.TypeVolumeAttachment, query}:      {serve: reads.queryVolumeAttachment},
		{resource.TypeRuntimeClass, query}:          {serve: reads.queryRuntimeClass},
		{resource.TypeCSIDriver, query}:             {serve: reads.queryCSIDriver},
		{resource.TypeCSINode, query}:               {serve: reads.queryCSINode},
		{resource.TypeCSINode, insert}:              {serve: reads.createCSINode, objectResp: true, limit: medium},
		{resource.TypeCSINode, update}:              {serve: reads.updateCSINode, objectResp: true, limit: medium},
		{resource.TypeClusterTrustBundle, query}:    {serve: reads.queryClusterTrustBundle, unnamed: true},
		{resource.TypeCSR, insert}:                  {serve: certificates.createCSR, objectResp: true},
		{resource.TypeCSR, query}:                   {serve: certificates.queryCSR},
		{resource.TypeTokenReview, insert}:          {serve: reviews.reviewToken, objectResp: true, limit: medium},
		{resource.TypeAccessReview, insert}:         {serve: reviews.reviewAccess, objectResp: true, limit: medium},
		{resource.TypeClientCA, query}:              {serve: reviews.queryClientCA},
		{resource.TypeService, query}:               {serve: reads.queryService},
		{resource.TypeEndpoints, query}:             {serve: reads.queryEndpoints},
		{resource.TypeEvent, insert}:                {serve: events.createEvent, silent: true, limit: medium},
		{resource.TypeEvent, update}:                {serve: events.updateEvent, silent: true, limit: medium},
		{resource.TypeEvent, patch}:                 {serve: events.patchEvent, silent: true, limit: medium},
	}
}
