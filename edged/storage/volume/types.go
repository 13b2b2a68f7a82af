package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

const supported = "emptyDir, hostPath, configMap, secret, downwardAPI, projected, persistentVolumeClaim, ephemeral, " +
	"nfs, csi and image"

// Unsupported reports a volume that a container of a pod has, or a source in such a projected volume, that this node
// cannot have. The error names the pod, the volume and the type.
func Unsupported(pod *v1.Pod) error {
	for vol := range usedVolumes(pod) {
		if err := unsupportedVolume(vol); err != nil {
			return &Error{vol.Name, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)}
		}
	}
	return nil
}

func unsupportedVolume(vol *v1.Volume) error {
	switch {
	case vol.HostPath != nil, vol.ConfigMap != nil, vol.Secret != nil, vol.DownwardAPI != nil,
		vol.PersistentVolumeClaim != nil, vol.Ephemeral != nil, vol.NFS != nil, vol.CSI != nil, vol.Image != nil:
		return nil
	case vol.EmptyDir != nil:
		if medium := vol.EmptyDir.Medium; medium != v1.StorageMediumDefault && medium != v1.StorageMediumMemory &&
			!isHugePages(medium) {
			return fmt.Errorf("emptyDir medium %q is not supported by this node; use \"\", Memory, HugePages or "+
				"HugePages-<size>", medium)
		}
		return nil
	case vol.Projected != nil:
		return unsupportedProjection(vol.Projected)
	}
	return fmt.Errorf("volume type %s is not supported by this node; use one of %s", Type(vol), supported)
}

func unsupportedProjection(src *v1.ProjectedVolumeSource) error {
	for i := range src.Sources {
		var kind string
		switch s := &src.Sources[i]; {
		case s.ConfigMap != nil, s.Secret != nil, s.DownwardAPI != nil, s.ServiceAccountToken != nil,
			s.ClusterTrustBundle != nil:
			continue
		case s.PodCertificate != nil:
			kind = "podCertificate"
		default:
			kind = "unknown"
		}
		return fmt.Errorf("projected source %s is not supported by this node; use configMap, secret, downwardAPI, "+
			"serviceAccountToken or clusterTrustBundle", kind)
	}
	return nil
}

// Type names the kind of a volume as its spec does.
func Type(vol *v1.Volume) string {
	for _, kind := range []struct {
		name string
		is   bool
	}{
		{"hostPath", vol.HostPath != nil},
		{"emptyDir", vol.EmptyDir != nil},
		{"configMap", vol.ConfigMap != nil},
		{"secret", vol.Secret != nil},
		{"downwardAPI", vol.DownwardAPI != nil},
		{"projected", vol.Projected != nil},
		{"persistentVolumeClaim", vol.PersistentVolumeClaim != nil},
		{"ephemeral", vol.Ephemeral != nil},
		{"csi", vol.CSI != nil},
		{"image", vol.Image != nil},
		{"nfs", vol.NFS != nil},
		{"iscsi", vol.ISCSI != nil},
		{"fc", vol.FC != nil},
		{"gitRepo", vol.GitRepo != nil},
		{"glusterfs", vol.Glusterfs != nil},
		{"rbd", vol.RBD != nil},
		{"cephfs", vol.CephFS != nil},
		{"flexVolume", vol.FlexVolume != nil},
		{"flocker", vol.Flocker != nil},
		{"cinder", vol.Cinder != nil},
		{"azureFile", vol.AzureFile != nil},
		{"azureDisk", vol.AzureDisk != nil},
		{"vsphereVolume", vol.VsphereVolume != nil},
		{"quobyte", vol.Quobyte != nil},
		{"photonPersistentDisk", vol.PhotonPersistentDisk != nil},
		{"portworxVolume", vol.PortworxVolume != nil},
		{"scaleIO", vol.ScaleIO != nil},
		{"storageos", vol.StorageOS != nil},
		{"gcePersistentDisk", vol.GCEPersistentDisk != nil},
		{"awsElasticBlockStore", vol.AWSElasticBlockStore != nil},
	} {
		if kind.is {
			return kind.name
		}
	}
	return "unknown"
}

// persistentType names the kind of a PersistentVolume as its spec does.
func persistentType(src *v1.PersistentVolumeSource) string {
	for _, kind := range []struct {
		name string
		is   bool
	}{
		{"iscsi", src.ISCSI != nil},
		{"fc", src.FC != nil},
		{"flexVolume", src.FlexVolume != nil},
		{"glusterfs", src.Glusterfs != nil},
		{"rbd", src.RBD != nil},
		{"cephfs", src.CephFS != nil},
		{"flocker", src.Flocker != nil},
		{"cinder", src.Cinder != nil},
		{"azureFile", src.AzureFile != nil},
		{"azureDisk", src.AzureDisk != nil},
		{"vsphereVolume", src.VsphereVolume != nil},
		{"quobyte", src.Quobyte != nil},
		{"photonPersistentDisk", src.PhotonPersistentDisk != nil},
		{"portworxVolume", src.PortworxVolume != nil},
		{"scaleIO", src.ScaleIO != nil},
		{"storageos", src.StorageOS != nil},
		{"gcePersistentDisk", src.GCEPersistentDisk != nil},
		{"awsElasticBlockStore", src.AWSElasticBlockStore != nil},
	} {
		if kind.is {
			return kind.name
		}
	}
	return "unknown"
}
