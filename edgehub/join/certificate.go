package join

import (
	"context"
	"fmt"
	"time"

	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// renewFrom is the share of its lifetime after which a join replaces a certificate.
const renewFrom = 0.7

// Certificate makes sure that the node has a valid certificate, and returns a sentence that says what it did. A token,
// and its text, are needed only for a new certificate. With takeName the device replaces a node that has its name.
func Certificate(
	ctx context.Context, cfg *v1alpha2.EdgeCore, token *certs.Token, text string, takeName bool,
) (string, error) {
	files, node := FilesOf(cfg), cfg.Modules.Edged.HostnameOverride
	keeper := nodecert.New(nodecert.Options{Server: cfg.Modules.EdgeHub.HTTPServer, Node: node, Files: files})
	state := keeper.Check()
	if token == nil {
		if state != nil {
			return "", state
		}
		return fmt.Sprintf("Kept the certificate of node %s", node), nil
	}
	id, err := files.Load()
	revoked := err == nil && id.Cert().NotBefore.Before(token.Claims.Since)
	if err == nil && state == nil && !revoked && token.SignedBy(id.CAs[0].Raw) &&
		time.Now().Before(certs.RenewAt(id.Cert(), renewFrom)) {
		return fmt.Sprintf("Kept the certificate of node %s, valid until %s", node,
			id.Cert().NotAfter.Format(time.DateOnly)), nil
	}
	own := err == nil && certs.CheckNode(id.Cert(), node, false) == nil
	if !own && !takeName && token.Claims.Node == "" {
		taken, err := keeper.NameTaken(ctx, text)
		if err != nil {
			return "", err
		}
		if taken {
			return "", fmt.Errorf("the cloud has a node %s already, and this device has no certificate of it: choose "+
				"another name (--edgenode-name), "+
				"or remove that node in the cloud (kubectl delete node %s); if this device takes that one's place, "+
				"join with a token for it "+
				"(cloudcore gettoken --node %s), or say so with --take-name", node, node, node)
		}
	}
	if err := keeper.Join(ctx, text); err != nil {
		return "", err
	}
	if id, err = files.Load(); err != nil {
		return "", fmt.Errorf("the new certificate: %w", err)
	}
	return fmt.Sprintf("Got a certificate for node %s, valid until %s", node,
		id.Cert().NotAfter.Format(time.DateOnly)), nil
}
