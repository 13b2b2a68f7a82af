package v1alpha2

// Minimal returns a file with the keys that a new device most likely sets, each with a short comment. All others keep
// their defaults.
func Minimal() []byte {
	edged := Default().Modules.Edged
	return []byte(
		`# edgecore's configuration. Each key that is left out has its default; ` + "`edgecore --defaultconfig`" +
			` prints
# them all, and ` + "`edgecore config validate FILE`" + ` checks a file.
apiVersion: ` + APIVersion + `
kind: ` + Kind + `
database:
  # The store: what this device is to run, and what it has not reported yet. Keep it on a disk that lasts.
  dataSource: ` + DefaultDataSource + `
modules:
  edged:
    # The node's name, in lower case.
    hostnameOverride: ` + edged.HostnameOverride + `
    # Where pods' volumes lie.
    rootDirectory: ` + DefaultRootDirectory + `
    tailoredKubeletConfig:
      # Pod manifests in this folder run at once, with no cloud.
      staticPodPath: ` + DefaultManifests + `
      # The container runtime: containerd, CRI-O, or another that speaks CRI v1.
      containerRuntimeEndpoint: ` + DefaultCRISocket + `
      # cgroupfs or systemd: the same as in the container runtime's configuration.
      cgroupDriver: cgroupfs
      # Where the local API answers: /pods, /healthz, /metrics. It asks for no password: keep it on this device.
      address: ` + local + `
      readOnlyPort: 10255
`)
}
