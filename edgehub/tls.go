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

// load reads the certificate files, and returns the TLS configuration and the node's certificate. An unset clock counts
// as the certificates' NotBefore, so that it delays nothing.
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

// noticeCA calls newCA if the cloud's certificate is not signed by a CA in the node's file, but by one that such a CA
// vouched for: the cloud has a newer CA.
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

// fileError is an invalid certificate file. If the path is empty, the error names it.
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
