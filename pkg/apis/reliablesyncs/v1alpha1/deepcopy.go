package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// DeepCopyInto copies the object.
func (in *ObjectSync) DeepCopyInto(out *ObjectSync) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
}

// DeepCopy copies the object.
func (in *ObjectSync) DeepCopy() *ObjectSync {
	if in == nil {
		return nil
	}
	out := new(ObjectSync)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (in *ObjectSync) DeepCopyObject() runtime.Object {
	if in == nil {
		return nil
	}
	return in.DeepCopy()
}

// DeepCopyInto copies the object.
func (in *ClusterObjectSync) DeepCopyInto(out *ClusterObjectSync) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
}

// DeepCopy copies the object.
func (in *ClusterObjectSync) DeepCopy() *ClusterObjectSync {
	if in == nil {
		return nil
	}
	out := new(ClusterObjectSync)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (in *ClusterObjectSync) DeepCopyObject() runtime.Object {
	if in == nil {
		return nil
	}
	return in.DeepCopy()
}

// DeepCopyInto copies the list.
func (in *ObjectSyncList) DeepCopyInto(out *ObjectSyncList) {
	*out = *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = copyItems(in.Items, (*ObjectSync).DeepCopyInto)
}

// DeepCopy copies the list.
func (in *ObjectSyncList) DeepCopy() *ObjectSyncList {
	if in == nil {
		return nil
	}
	out := new(ObjectSyncList)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (in *ObjectSyncList) DeepCopyObject() runtime.Object {
	if in == nil {
		return nil
	}
	return in.DeepCopy()
}

// DeepCopyInto copies the list.
func (in *ClusterObjectSyncList) DeepCopyInto(out *ClusterObjectSyncList) {
	*out = *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = copyItems(in.Items, (*ClusterObjectSync).DeepCopyInto)
}

// DeepCopy copies the list.
func (in *ClusterObjectSyncList) DeepCopy() *ClusterObjectSyncList {
	if in == nil {
		return nil
	}
	out := new(ClusterObjectSyncList)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (in *ClusterObjectSyncList) DeepCopyObject() runtime.Object {
	if in == nil {
		return nil
	}
	return in.DeepCopy()
}

func copyItems[T any](in []T, into func(*T, *T)) []T {
	if in == nil {
		return nil
	}
	out := make([]T, len(in))
	for i := range in {
		into(&in[i], &out[i])
	}
	return out
}
