package edgehub

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// load reads the certificate files, as they are now, and returns the node's own certificate beside the configuration.
// A clock that is not set yet is taken to be at the certificates' beginning, so that it delays nothing here.
func (f files) load() (*tls.Config, *x509.Certificate, error) {
	id, err := certs.Files{CA: f.ca, Cert: f.cert, Key: f.key}.Load()
	if err != nil {
		bad := &fileError{"", err}
		if file := (*fs.PathError)(nil); errors.As(err, &file) {
			bad = &fileError{file.Path, file.Err}
		}
		return nil, nil, bad
	}
	return id.ClientTLS(time.Now), id.Cert(), nil
}

// noticeCA calls newCA when the cloud's certificate is not of a CA in the node's file itself, but of one for which such
// a CA has vouched: the cloud has another CA since.
func noticeCA(config *tls.Config, newCA func()) {
	if newCA == nil {
		return
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		direct := func(chain []*x509.Certificate) bool { return len(chain) <= 2 }
		if len(state.VerifiedChains) > 0 && !slices.ContainsFunc(state.VerifiedChains, direct) {
			newCA()
		}
		return nil
	}
}

// fileError is a certificate file that is invalid. Where the path is empty the error names it.
type fileError struct {
	path string
	err  error
}

func (e *fileError) Error() string {
	if e.path == "" {
		return e.err.Error()
	}
	return e.path + ": " + e.err.Error()
}

func (e *fileError) Unwrap() error { return e.err }
