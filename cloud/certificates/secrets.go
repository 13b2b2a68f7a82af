package certificates

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/watchlist"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// Namespace is where KubeEdge keeps its secrets.
const Namespace = "kubeedge"

// Secrets is the part of the API that this package uses, in one namespace; client-go's typed client implements it.
type Secrets interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Secret, error)
	Create(ctx context.Context, secret *v1.Secret, opts metav1.CreateOptions) (*v1.Secret, error)
	Update(ctx context.Context, secret *v1.Secret, opts metav1.UpdateOptions) (*v1.Secret, error)
	List(ctx context.Context, opts metav1.ListOptions) (*v1.SecretList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

var _ Secrets = typedcorev1.SecretInterface(nil)

// SecretsOf returns the Secrets of the namespace, and creates the namespace if it is missing.
func SecretsOf(ctx context.Context, client kubernetes.Interface, namespace string) (Secrets, error) {
	_, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if _, err = client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); apierrors.IsAlreadyExists(
			err) {
			err = nil
		}
	}
	if err != nil && !apierrors.IsForbidden(err) { // Secrets may be accessible without namespaces
		return nil, fmt.Errorf("namespace %s: %w", namespace, err)
	}
	return ofClient{client.CoreV1().Secrets(namespace), client}, nil
}

// ofClient tells a reflector whether the client supports WatchList, which client-go's fake does not.
type ofClient struct {
	Secrets
	client kubernetes.Interface
}

func (s ofClient) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(s.client)
}

// pairSecret is a Secret with a certificate and its key, both in DER form.
type pairSecret struct{ name, cert, key string }

// The Secrets are KubeEdge's, except for the token key.
var (
	caSecret     = pairSecret{"casecret", "cadata", "cakeydata"}
	serverSecret = pairSecret{"cloudcoresecret", "cloudcoredata", "cloudcorekeydata"}
)

const (
	tokenSecret, tokenData       = "tokensecret", "tokendata"
	tokenKeySecret, tokenKeyData = "tokenkeysecret", "tokenkeydata"
)

func (s pairSecret) encode(p pair) (map[string][]byte, error) {
	key, err := certs.EncodeKey(p.key)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{s.cert: p.cert.Raw, s.key: key}, nil
}

func (s pairSecret) decode(data map[string][]byte) (pair, error) {
	cert, err := parseCert(data[s.cert])
	if err != nil {
		return pair{}, fmt.Errorf("%s is not a certificate in DER form: %w", s.cert, err)
	}
	key, err := certs.ParseKey(data[s.key])
	if err != nil {
		return pair{}, fmt.Errorf("%s: %w", s.key, err)
	}
	if !certs.Fits(cert, key) {
		return pair{}, fmt.Errorf("%s does not belong to %s", s.cert, s.key)
	}
	return pair{cert, key}, nil
}

// maxRaces is how often a write is retried after losing to another writer.
const maxRaces = 20

// update updates a Secret and returns its content. decide gets the current content (nil without a Secret) and returns
// the new content, or nil to leave it. The first writer wins; others see what it wrote, and decide is called again.
// keep reports whether it wrote anything.
func update(
	ctx context.Context, secrets Secrets, name string, decide func(old map[string][]byte) (map[string][]byte, error),
) (_ map[string][]byte, wrote bool, _ error) {
	for range maxRaces {
		secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, false, secretError(name, err)
		}
		var old map[string][]byte
		if !missing {
			if old = secret.Data; old == nil {
				old = map[string][]byte{}
			}
		}
		data, err := decide(old)
		switch {
		case err != nil:
			return nil, false, err
		case data == nil:
			return old, false, nil
		case missing:
			secret = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: v1.SecretTypeOpaque, Data: data}
			_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		default:
			secret = secret.DeepCopy() // keeps the resource version that was read
			secret.Data = data
			_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		}
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, false, secretError(name, err)
		}
		return data, true, nil
	}
	return nil, false, secretError(name, errors.New("other clients keep changing it"))
}

func secretError(name string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("secret %s: %w; cloudcore's role must allow get, create and update of secrets in "+
			"namespace %s", name, err, Namespace)
	}
	return fmt.Errorf("secret %s: %w", name, err)
}
