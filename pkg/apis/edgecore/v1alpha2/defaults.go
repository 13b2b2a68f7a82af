package v1alpha2

import (
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// Default paths: KubeEdge's, but for the folder of dmi.sock.
const (
	DefaultConfigFile    = "/etc/kubeedge/config/edgecore.yaml"
	DefaultDataSource    = "/var/lib/kubeedge/edgecore.db"
	DefaultRootDirectory = "/var/lib/kubelet"
	DefaultManifests     = "/etc/kubeedge/manifests"
	DefaultCRISocket     = "unix:///run/containerd/containerd.sock"
	// DefaultDMIDir is the folder of dmi.sock, which has nothing else, and DefaultDMIGroup the group that may use it: a
	// number that Linux distributions give to nobody. Mappers run in that group, and mount that folder.
	DefaultDMIDir   = "/run/edgecore/dmi"
	DefaultDMIGroup = "65530"
	// KubeEdgeDMIDir is where KubeEdge's mappers look for dmi.sock.
	KubeEdgeDMIDir = "/etc/kubeedge"
	// DefaultReadOnlyPort is the kubelet's; KubeEdge's files set 10350.
	DefaultReadOnlyPort = 10255
	// DefaultPort is the kubelet API's port, with TLS.
	DefaultPort = 10250

	caFile   = "/etc/kubeedge/ca/rootCA.crt"
	certFile = "/etc/kubeedge/certs/server.crt"
	keyFile  = "/etc/kubeedge/certs/server.key"
	local    = "127.0.0.1"
)

// Default returns the configuration of an empty file.
func Default() *EdgeCore {
	e := &EdgeCore{TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind}}
	(&table{keytable.Table{Pass: keytable.SetDefaults}}).keys(e)
	e.Modules.Edged.TailoredKubeletConfig.Logging.FlushFrequency.SerializeAsString = true // it has two forms
	return e
}

// complete sets values that depend on others or have a second spelling.
func (e *EdgeCore) complete() {
	edged := &e.Modules.Edged
	if edged.HostnameOverride == "" {
		edged.HostnameOverride = defaultNodeName()
	}
	kubelet := &edged.TailoredKubeletConfig
	for _, endpoint := range []*string{&kubelet.ContainerRuntimeEndpoint, &kubelet.ImageServiceEndpoint} {
		if strings.HasPrefix(*endpoint, "/") { // the kubelet accepts a bare path, too
			*endpoint = strict.UnixScheme + *endpoint
		}
	}
	completeKubelet(kubelet)
}

// completeKubelet sets the kubelet's settings that are empty or zero to their defaults, as the kubelet does: kubeadm
// writes files that are full of 0s.
func completeKubelet(k *kubeletconfig.KubeletConfiguration) {
	if k.SerializeImagePulls == nil { // see adaptDefaults
		k.SerializeImagePulls = ptr.To(k.MaxParallelImagePulls == nil || *k.MaxParallelImagePulls < 2)
	}
	// The kubelet sets no limit for 0, and takes any negative number for -1.
	if limit := k.PodPidsLimit; limit != nil && *limit <= 0 {
		k.PodPidsLimit = ptr.To[int64](-1)
	}
	(&table{keytable.Table{Pass: keytable.FillZeros}}).kubelet(k, true)
	k.Logging.FlushFrequency.SerializeAsString = true
}

// defaultNodeName is the host's name, in lower case as nodes' names are.
func defaultNodeName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "edge-node"
	}
	return strings.ToLower(name)
}
