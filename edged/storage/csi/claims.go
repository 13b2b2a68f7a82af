package csi

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// usagesOf returns how full volumes of claims are that have no CSI driver.
func usagesOf(claims []volume.ClaimUsage) []Usage {
	var out []Usage
	for _, u := range claims {
		out = append(out, Usage{
			PodUID:     u.PodUID,
			Pod:        types.NamespacedName{Namespace: u.Claim.Namespace},
			Name:       u.Name,
			Claim:      u.Claim.Name,
			Capacity:   u.Capacity,
			Available:  u.Available,
			Used:       u.Used,
			Inodes:     u.Inodes,
			InodesFree: u.InodesFree,
			InodesUsed: u.InodesUsed,
		})
	}
	return out
}
