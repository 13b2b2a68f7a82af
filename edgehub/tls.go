package edgehub

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// load reads the certificate files, as they are now, and returns the node's own certificate beside the configuration.
func (f files) load() (*tls.Config, *x509.Certificate, error) {
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, nil, &fileError{f.ca, err}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, &fileError{f.ca, fmt.Errorf("there is no certificate in it")}
	}
	for _, path := range []string{f.cert, f.key} {
		if _, err := os.Stat(path); err != nil {
			return nil, nil, &fileError{path, err}
		}
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, nil, &fileError{f.cert, err}
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}, pair.Leaf, nil
}

// fileError is a certificate file that is of no use.
type fileError struct {
	path string
	err  error
}

func (e *fileError) Error() string { return e.path + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }
