package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// APIServiceIPs returns the ClusterIPs of the cluster's API server, as far as the store has its Service
// (default/kubernetes).
func APIServiceIPs(ctx context.Context, s Store) ([]netip.Addr, error) {
	key := resource.Key{Namespace: v1.NamespaceDefault, Type: resource.TypeService, Name: "kubernetes"}
	row, err := s.Get(ctx, key.String())
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	var service v1.Service
	if err == nil {
		err = json.Unmarshal(row.Value, &service)
	}
	if err != nil {
		return nil, fmt.Errorf("ClusterIPs of the API server (%s): %w", key, err)
	}
	ips := service.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{service.Spec.ClusterIP}
	}
	var all []netip.Addr
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err == nil {
			all = append(all, ip)
		}
	}
	return all, nil
}
