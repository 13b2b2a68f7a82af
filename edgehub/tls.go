package edgehub

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
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

// fileError is a certificate file that is of no use. Where the path is empty the error names it.
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
