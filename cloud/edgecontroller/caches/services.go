package caches

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// CachedPorts is how many ports of a Service are cached at most. With 64 it takes about 10 KB.
const CachedPorts = 64

// servicePage is how many Services are listed at a time.
const servicePage = 50

// newServiceInformer returns an informer of Services. The first ones arrive one by one, or, from an API server that
// cannot stream its list, in pages: with the transform onlyCached, all of them are never in memory whole.
func newServiceInformer(client kubernetes.Interface) cache.SharedIndexInformer {
	services := client.CoreV1().Services(metav1.NamespaceAll)
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return listServices(ctx, services)
		},
		WatchFuncWithContext: services.Watch,
	}, client)
	return cache.NewSharedIndexInformer(source, &v1.Service{}, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// listServices lists all Services in pages, and makes each page small.
func listServices(ctx context.Context, services corev1.ServiceInterface) (*v1.ServiceList, error) {
	out := &v1.ServiceList{}
	for {
		page, err := services.List(ctx, metav1.ListOptions{Limit: servicePage, Continue: out.Continue})
		if err != nil {
			return nil, err
		}
		out.ListMeta = page.ListMeta
		for i := range page.Items {
			out.Items = append(out.Items, *slimService(&page.Items[i]))
		}
		if out.Continue == "" {
			return out, nil
		}
	}
}

// onlyCached returns what is cached of a Service: what ForNodes keeps, without ports if it has no address or more than
// CachedPorts. Those are read from the API server when a node needs them.
func onlyCached(obj any) (any, error) {
	if s, ok := obj.(*v1.Service); ok {
		return slimService(s), nil
	}
	return obj, nil
}

func slimService(s *v1.Service) *v1.Service {
	out := ForNodes(s)
	if !HasAddress(s) || len(s.Spec.Ports) > CachedPorts {
		out.Spec.Ports = nil
	}
	return out
}

// LacksPorts reports whether the ports of a cached Service were left out: without any, it could have no address.
func LacksPorts(s *v1.Service) bool { return HasAddress(s) && len(s.Spec.Ports) == 0 }

// ForNodes returns what nodes are sent of a Service: what the environment variables of containers are made of. Its
// annotations and labels may be large.
func ForNodes(s *v1.Service) *v1.Service {
	out := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         s.Namespace,
			Name:              s.Name,
			UID:               s.UID,
			ResourceVersion:   s.ResourceVersion,
			CreationTimestamp: s.CreationTimestamp,
			DeletionTimestamp: s.DeletionTimestamp,
		},
		Spec: v1.ServiceSpec{
			Type:       s.Spec.Type,
			ClusterIP:  s.Spec.ClusterIP,
			ClusterIPs: s.Spec.ClusterIPs,
		},
	}
	for _, p := range s.Spec.Ports {
		out.Spec.Ports = append(out.Spec.Ports, v1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	return out
}

// SameService reports whether a change of a Service matters to no node.
func SameService(a, b *v1.Service) bool {
	return SameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		(a.ResourceVersion == b.ResourceVersion || !LacksPorts(b))
}

// SameMeta ignores fields that change with every write.
func SameMeta(a, b *metav1.ObjectMeta) bool {
	x, y := *a, *b
	for _, m := range []*metav1.ObjectMeta{&x, &y} {
		m.ResourceVersion, m.Generation, m.ManagedFields = "", 0, nil
	}
	return equality.Semantic.DeepEqual(&x, &y)
}
