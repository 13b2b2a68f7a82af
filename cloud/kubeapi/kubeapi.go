// Package kubeapi connects cloudcore to kube-apiserver: its address, its clients, and waiting for one that is starting.
package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// Config returns the client configuration for kube-apiserver; inCluster returns that of the pod that cloudcore runs in.
func Config(cfg *v1alpha1.KubeAPIConfig, inCluster func() (*rest.Config, error)) (*rest.Config, error) {
	rc, err := baseConfig(cfg, inCluster)
	if err != nil {
		return nil, err
	}
	rc.UserAgent = "cloudcore/" + version.Version()
	rc.QPS, rc.Burst = float32(cfg.QPS), int(cfg.Burst)
	rc.ContentType = cfg.ContentType
	rc.AcceptContentTypes = cfg.ContentType
	if cfg.ContentType != v1alpha1.ContentTypeJSON {
		rc.AcceptContentTypes += "," + v1alpha1.ContentTypeJSON
	}
	return rc, nil
}

func baseConfig(cfg *v1alpha1.KubeAPIConfig, inCluster func() (*rest.Config, error)) (*rest.Config, error) {
	if cfg.Master == "" && cfg.KubeConfig == "" {
		rc, err := inCluster()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, errors.New("kube-apiserver is not configured: this is not a pod of a cluster, and the " +
				"configuration " +
				"names none; set kubeAPIConfig.kubeConfig to the path of a kubeconfig")
		case err != nil:
			return nil, fmt.Errorf("the pod's service account: %w", err)
		}
		return rc, nil
	}
	rc, err := clientcmd.BuildConfigFromFlags(cfg.Master, cfg.KubeConfig)
	if err != nil {
		return nil, fmt.Errorf("kubeAPIConfig.kubeConfig %q: %w", cfg.KubeConfig, err)
	}
	return rc, nil
}

// Server holds what the parts of cloudcore need from kube-apiserver.
type Server struct {
	// Client acts as cloudcore itself.
	Client kubernetes.Interface
	// Objects reads and writes objects without a Go type here.
	Objects dynamic.Interface
	// Connect makes edgecontroller's clients once kube-apiserver answers.
	Connect func(context.Context) (impersonate.Clients, error)
	// CA is kube-apiserver's CA in PEM; empty if the system's CAs are trusted.
	CA []byte
	// Anonymous says where kube-apiserver is and how to trust it. It has no credentials.
	Anonymous *rest.Config
	// Health knows the answers to all requests of these clients.
	Health *apihealth.Tracker
}

// New makes the clients. It sends no requests.
func New(rc *rest.Config) (*Server, error) {
	rc = rest.CopyConfig(rc)
	health := apihealth.New()
	rc.Wrap(health.Wrap)
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("client of kube-apiserver %s: %w", rc.Host, err)
	}
	objects, err := dynamic.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("client of kube-apiserver %s: %w", rc.Host, err)
	}
	ca := rc.CAData
	if len(ca) == 0 && rc.CAFile != "" {
		if ca, err = os.ReadFile(rc.CAFile); err != nil {
			return nil, fmt.Errorf("CA of kube-apiserver %s: %w", rc.Host, err)
		}
	}
	connect := func(ctx context.Context) (impersonate.Clients, error) {
		how, err := impersonate.Choose(ctx, rc)
		if err != nil {
			return impersonate.Clients{}, err
		}
		return impersonate.New(rc, how)
	}
	return &Server{
		Client:    client,
		Objects:   objects,
		Connect:   connect,
		CA:        ca,
		Anonymous: rest.AnonymousClientConfig(rc),
		Health:    health,
	}, nil
}

const (
	// minRetry and lastRetry limit the pause between requests to an API server that does not answer.
	minRetry = time.Second
	maxRetry = 3 * time.Second
	// answerTimeout is the timeout for kube-apiserver to answer at startup.
	answerTimeout = 10 * time.Second
	// rbacDelay is how long kube-apiserver may take to apply RBAC rules that were just created.
	rbacDelay = 15 * time.Second
)

// Await returns when kube-apiserver answers: both may be starting at the same time. Meanwhile it reports problems to
// waiting. Refused credentials are an error.
func Await(ctx context.Context, client kubernetes.Interface, waiting func(error)) error {
	said := ""
	for backoff := retry.NewBackoff(minRetry, maxRetry); ; {
		err := askAPI(ctx, client)
		switch {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return nil // it has answered
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsUnauthorized(err):
			return fmt.Errorf("kube-apiserver refuses cloudcore's credentials: %w; check those in "+
				"kubeAPIConfig.kubeConfig, or at the pod's service account", err)
		}
		waiting(err)
		if text := err.Error(); text != said {
			klog.ErrorS(err, "kube-apiserver does not answer; asking again until it does")
			said = text
		}
		if !backoff.Wait(ctx) {
			return ctx.Err()
		}
	}
}

func askAPI(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := client.CoreV1().Namespaces().Get(ctx, certificates.Namespace, metav1.GetOptions{})
	return err
}

// AwaitPermission calls ask until kube-apiserver stops forbidding its request, or for at most rbacDelay: cloudcore's
// role may have been applied a moment ago. Meanwhile it reports to waiting what is forbidden.
func AwaitPermission(ctx context.Context, waiting func(error), ask func() error) error {
	said := false
	for began := time.Now(); ; {
		err := ask()
		if !apierrors.IsForbidden(err) || time.Since(began) >= rbacDelay {
			return err
		}
		if !said {
			klog.InfoS("kube-apiserver forbids what cloudcore needs; asking again, as its role may have been applied "+
				"just before", "for", rbacDelay, "err", err)
			said = true
		}
		waiting(err)
		if !retry.Sleep(ctx, minRetry) {
			return ctx.Err()
		}
	}
}
