package preflight

import (
	"context"
	"errors"
	"slices"
	"time"
)

// runtimeTimeout bounds all questions of RuntimeFor.
const runtimeTimeout = 5 * time.Second

// RuntimeFor says why no pod can start with a container runtime, a socket for images ("" is the runtime's) and a cgroup
// driver, with the key that is wrong and what to do about it; nil if pods can. It changes nothing.
func RuntimeFor(ctx context.Context, endpoint, images, driver string) error {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	f := Facts{Cgroups: lookAtCgroups(driver), Runtime: Runtime{Endpoint: endpoint, ImageEndpoint: images}}
	lookAtRuntime(ctx, &f.Runtime, &f.CNI)
	return runtimeProblem(&f)
}

// runtimeProblem is pure.
func runtimeProblem(f *Facts) error {
	const kubelet = "modules.edged.tailoredKubeletConfig."
	for _, finding := range containerRuntime(&f.Runtime) {
		if finding.Level == Error {
			return errors.New(kubelet + "containerRuntimeEndpoint: " + finding.Text + ". " + finding.Remedy)
		}
	}
	for _, finding := range slices.Concat(imageService(&f.Runtime), cgroup(&f.Cgroups, f.Runtime.Driver)) {
		if finding.Level == Error {
			return errors.New(kubelet + finding.Text + ". " + finding.Remedy) // the text begins with the key
		}
	}
	return nil
}
