package kubeapi

import (
	"errors"
	"fmt"
	"io/fs"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
)

// Find returns the way to kube-apiserver for a command: that of kubeConfig, the flag --kube-config, if it is set; else
// that of cloudcore's configuration file; else that of the pod that the command runs in; else kubectl's.
func Find(kubeConfig, file string, inCluster func() (*rest.Config, error)) (*rest.Config, error) {
	if kubeConfig != "" {
		rc, err := clientcmd.BuildConfigFromFlags("", kubeConfig)
		if err != nil {
			return nil, fmt.Errorf("--kube-config %s: %w", kubeConfig, err)
		}
		return rc, nil
	}
	cfg, _, err := v1alpha1.Load(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil && (cfg.KubeAPIConfig.KubeConfig != "" || cfg.KubeAPIConfig.Master != "") {
		return Config(&cfg.KubeAPIConfig, inCluster)
	}
	rc, err := inCluster()
	if err == nil {
		return rc, nil
	}
	rc, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(),
		nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver is not configured: give --kube-config FILE, or set $KUBECONFIG: %w", err)
	}
	return rc, nil
}
