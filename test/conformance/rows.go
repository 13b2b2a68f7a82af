package conformance

import (
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Pod is the pod of a row, for tests that do something else with it. In Objects and Spec, @NODE@ stands for the node's
// name, which is also the namespace's, and @NAME@ for the pod's.
type Pod struct {
	Name, Objects, Spec string
	Labels, Annotations map[string]string
}

// Pods returns the pods of all rows.
func Pods() []Pod {
	rows := allRows()
	out := make([]Pod, len(rows))
	for i, r := range rows {
		out[i] = Pod{Name: r.name, Objects: r.objects, Spec: r.spec, Labels: r.labels, Annotations: r.annotations}
	}
	return out
}

// RandomSpec returns a spec over the supported fields. The same random numbers give the same spec.
func RandomSpec(rng *rand.Rand, opts RandomOptions) v1.PodSpec {
	g := &generator{Rand: rng, RandomOptions: opts}
	return g.spec()
}

// RandomObjects are the manifests of what the random specs refer to. @NODE@ is the node, @DIR@ a folder on it.
const RandomObjects = randomObjects

// allRows are the rows of every area.
func allRows() []row {
	return slices.Concat(
		basicRows(),
		pullRows(),
		volumeRows(),
		claimRows(),
		csiRows(),
		gcepdRows(),
		deviceRows(),
		admissionRows(),
		probeRows(),
		resizeRows(),
		statusRows(),
		lifecycleRows(),
		sidecarRows(),
		hookRows(),
		restartRows(),
		terminationRows(),
		securityRows(),
		environmentRows(),
		networkRows(),
	)
}

// APIServerFlags are the flags of the API server for the fields of the rows that it does not take by default.
func APIServerFlags() []string {
	return []string{
		"--feature-gates=ContainerStopSignals=true,ImageVolumeWithDigest=true,ClusterTrustBundle=true," +
			"ClusterTrustBundleProjection=true",
		"--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true",
	}
}
