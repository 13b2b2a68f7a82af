package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/peer"
)

const node = "node1"

// device is an agent whose cloud is in this process.
type device struct {
	cloud   *peer.Cloud
	runtime *cri.Client
	agent   *agent.Agent
	// caPEM is the CA of the link; it does for the cluster's, too.
	caPEM []byte
}

// newDevice starts an agent that is linked to a cloud of its own. No other may run on this containerd meanwhile.
func (b *bench) newDevice(ctx context.Context) (_ *device, err error) {
	d := &device{runtime: b.floor.CRI}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.stop(context.WithoutCancel(ctx)))
		}
	}()
	dir := filepath.Join(b.dir, "linked")
	config, err := d.certify(ctx, dir)
	if err != nil {
		return nil, err
	}
	if d.cloud, err = peer.Listen(config, "127.0.0.1:0", node); err != nil {
		return nil, err
	}
	d.agent, err = agent.New(agent.Options{
		Binary: b.binary, Dir: dir, NodeName: node, Endpoint: b.ctrd.Endpoint(), CgroupRoot: b.ctrd.CgroupRoot(),
		Kubelet: map[string]any{"clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "cluster.local"},
		EdgeHub: map[string]any{
			"enable": true, "httpServer": "https://127.0.0.1:1", // nothing joins or renews
			"messageQPS": 0, // the default limit for KubeEdge's cloudcore is not measured
			"websocket":  map[string]any{"enable": true, "server": "127.0.0.1:" + strconv.Itoa(d.cloud.Port())},
		},
	})
	if err != nil {
		return nil, err
	}
	if err := d.agent.Start(ctx); err != nil {
		return nil, err
	}
	return d, d.until(ctx, "the agent connects", d.cloud.Connected)
}

// stop ends agent and cloud.
func (d *device) stop(ctx context.Context) error {
	var errs []error
	if d.agent != nil {
		errs = append(errs, d.agent.Stop(ctx))
	}
	if d.cloud != nil {
		errs = append(errs, d.cloud.Close())
	}
	return errors.Join(errs...)
}

// certify makes a CA, what the cloud shows, and the files of the agent.
func (d *device) certify(ctx context.Context, dir string) (*tls.Config, error) {
	authority, err := certificates.New(ctx, &secrets{}, certificates.Options{Addresses: []string{"127.0.0.1"}})
	if err != nil {
		return nil, err
	}
	key, err := certs.NewKey()
	if err != nil {
		return nil, err
	}
	cert, err := authority.SignNode(node, &x509.CertificateRequest{PublicKey: key.Public()})
	if err != nil {
		return nil, err
	}
	ca := authority.CA().Raw
	d.caPEM = certs.EncodeCertPEM(ca)
	files := certs.Files{
		CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "edge.crt"), Key: filepath.Join(dir, "edge.key"),
	}
	return authority.ServerTLS(tls.RequireAndVerifyClientCert), files.Save(ca, cert, key)
}

// until waits for something that the agent tells the cloud.
func (d *device) until(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		told := d.cloud.Told()
		if done() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; in vain: %q\n%s", what, ctx.Err(), d.cloud.Refused(),
				daemon.Tail(d.agent.Log(), 20))
		case <-told:
		}
	}
}

func podKey(name string) string {
	return resource.Key{Namespace: namespace, Type: resource.TypePod, Name: name}.String()
}

// create sends a pod, and returns when the agent has told that it runs.
func (d *device) create(ctx context.Context, pod *v1.Pod) error {
	if _, err := d.cloud.Put(pod); err != nil {
		return err
	}
	return d.until(ctx, pod.Name+" runs", func() bool {
		return d.cloud.Status(podKey(pod.Name)).Phase == v1.PodRunning
	})
}

// remove tells the agent to end a pod, and returns when it has reported the end.
func (d *device) remove(ctx context.Context, name string) error {
	if err := d.cloud.Delete(podKey(name)); err != nil {
		return err
	}
	return d.until(ctx, name+" is gone", func() bool { return d.cloud.Journal()[podKey(name)].Deleted })
}

// podLifecycle makes and removes a pod after a rest, and tells how long each took, as the cloud sees it.
func (d *device) podLifecycle(ctx context.Context, pod *v1.Pod) (up, gone time.Duration, err error) {
	if err := d.until(ctx, "all is acknowledged", func() bool { return d.cloud.AllAcked() == nil }); err != nil {
		return 0, 0, err
	}
	if err := rest(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := d.create(ctx, pod); err != nil {
		return 0, 0, err
	}
	up = time.Since(began)
	began = time.Now()
	err = d.remove(ctx, pod.Name)
	return up, time.Since(began), err
}

// secrets are where the authority keeps its keys: for as long as this program runs.
type secrets struct {
	mu    sync.Mutex
	known map[string]*v1.Secret
}

func (s *secrets) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.known[name]; one != nil {
		return one.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
}

func (s *secrets) Create(_ context.Context, secret *v1.Secret, _ metav1.CreateOptions) (*v1.Secret, error) {
	return s.keep(secret), nil
}

func (s *secrets) Update(_ context.Context, secret *v1.Secret, _ metav1.UpdateOptions) (*v1.Secret, error) {
	return s.keep(secret), nil
}

func (s *secrets) List(context.Context, metav1.ListOptions) (*v1.SecretList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &v1.SecretList{}
	for _, one := range s.known {
		list.Items = append(list.Items, *one.DeepCopy())
	}
	return list, nil
}

// Watch sees no change: nobody but the benchmark writes.
func (s *secrets) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func (s *secrets) keep(secret *v1.Secret) *v1.Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[string]*v1.Secret{}
	}
	s.known[secret.Name] = secret.DeepCopy()
	return secret
}
