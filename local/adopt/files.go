package adopt

import (
	"path/filepath"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// CertFiles are CA, certificate and key in a folder of this agent.
func CertFiles(dir string) certs.Files {
	return certs.Files{
		CA: filepath.Join(dir, "rootCA.crt"), Cert: filepath.Join(dir, "server.crt"),
		Key: filepath.Join(dir, "server.key"),
	}
}

// CertFilesOf are those that a configuration names.
func CertFilesOf(cfg *v1alpha2.EdgeCore) certs.Files {
	h := &cfg.Modules.EdgeHub
	return certs.Files{CA: h.TLSCAFile, Cert: h.TLSCertFile, Key: h.TLSPrivateKeyFile}
}
