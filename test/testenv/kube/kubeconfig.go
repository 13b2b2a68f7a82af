package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The users that every cluster knows. What cloudcore may do, the test has to say (see deploy/cloudcore).
const (
	AdminUser     = "admin"
	CloudCoreUser = "cloudcore"

	controllerManagerUser = "system:kube-controller-manager"
	schedulerUser         = "system:kube-scheduler"
)

// groupsOf are the users that every cluster knows, and their groups.
var groupsOf = map[string][]string{
	AdminUser:             {"system:masters"},
	CloudCoreUser:         nil,
	controllerManagerUser: nil,
	schedulerUser:         nil,
}

// Kubeconfig is the path of a user's kubeconfig, which holds all that a client needs. The user is
// AdminUser, CloudCoreUser, or one that AddUser or AddServiceAccount made.
func (c *Cluster) Kubeconfig(user string) string {
	return c.file(strings.NewReplacer(":", "-", "/", "-").Replace(user) + ".kubeconfig")
}

// AddUser makes a user with a client certificate and returns the path of its kubeconfig: such as
// "system:node:edge-1" in the group "system:nodes".
func (c *Cluster) AddUser(user string, groups ...string) (string, error) {
	p, err := c.ca.client(user, groups...)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(user, &clientcmdapi.AuthInfo{ClientCertificateData: p.cert, ClientKeyData: p.key})
}

// AddServiceAccount returns the path of a kubeconfig with a token of a service account that exists,
// for running outside of the cluster what would run inside as that account.
func (c *Cluster) AddServiceAccount(ctx context.Context, namespace, name string) (string, error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64((24 * time.Hour).Seconds()))},
	}
	answer, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("get a token for the service account %s/%s: %w", namespace, name, err)
	}
	return c.writeKubeconfig(namespace+":"+name, &clientcmdapi.AuthInfo{Token: answer.Status.Token})
}

func (c *Cluster) writeKubeconfig(user string, auth *clientcmdapi.AuthInfo) (string, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[c.name] = &clientcmdapi.Cluster{Server: c.URL(), CertificateAuthorityData: c.ca.PEM}
	config.AuthInfos[user] = auth
	config.Contexts[c.name] = &clientcmdapi.Context{Cluster: c.name, AuthInfo: user}
	config.CurrentContext = c.name
	path := c.Kubeconfig(user)
	return path, clientcmd.WriteToFile(*config, path)
}
