package runtime

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// imageVolume returns the image of a pod's volume, nil for a volume of another kind.
func imageVolume(pod *v1.Pod, name string) *v1.ImageVolumeSource {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return pod.Spec.Volumes[i].Image
		}
	}
	return nil
}

// ensureImageVolumes brings the images that a container mounts onto the node, and returns their references by volume;
// or why there is one missing and when to try again, as EnsureImage does.
func (r *Runtime) ensureImageVolumes(
	ctx context.Context, p startParams, c *v1.Container,
) (refs map[string]string, problem *observed.Reason, retryAt time.Time) {
	for i := range c.VolumeMounts {
		name := c.VolumeMounts[i].Name
		source := imageVolume(p.pod, name)
		if source == nil || refs[name] != "" {
			continue
		}
		if source.Reference == "" {
			return nil, &observed.Reason{
				Reason:  reasonCreateConfigError,
				Message: fmt.Sprintf("volume %s: image.reference is empty; name an image", name),
			}, time.Time{}
		}
		as := c.DeepCopy() // the events on the pull are the container's
		as.Image, as.ImagePullPolicy = source.Reference, source.PullPolicy
		ref, problem, retryAt := r.opts.Images.EnsureImage(ctx, p.pod, as, p.secrets, p.config)
		if problem != nil {
			return nil, problem, retryAt
		}
		if refs == nil {
			refs = map[string]string{}
		}
		refs[name] = r.byDigest(ctx, ref)
	}
	return refs, nil, time.Time{}
}

// byDigest names an image as a registry knows it, for the pod's status; one that came from none is named by its id.
func (r *Runtime) byDigest(ctx context.Context, id string) string {
	resp, err := r.client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: id},
	})
	if err != nil || len(resp.GetImage().GetRepoDigests()) == 0 {
		return id
	}
	return resp.Image.RepoDigests[0]
}

// mountedImages returns the images that a container mounts by the path at which it does.
func mountedImages(mounts []*runtimeapi.Mount) map[string]string {
	var out map[string]string
	for _, m := range mounts {
		if m.GetImage().GetImage() == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[m.ContainerPath] = m.Image.Image
	}
	return out
}

// imageMounts makes the mounts of images; the runtime resolves a sub-path within the image.
func imageMounts(
	pod *v1.Pod, c *v1.Container, refs map[string]string, vars []*runtimeapi.KeyValue,
) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		source := imageVolume(pod, vm.Name)
		if source == nil {
			continue
		}
		sub := vm.SubPath
		if vm.SubPathExpr != "" {
			sub = env.Expand(vm.SubPathExpr, env.Lookup(vars))
		}
		if sub != "" && !filepath.IsLocal(sub) {
			return nil,
				fmt.Errorf("volume mount %q of container %s: subPath %q leads out of the image; want a path within it",
					vm.Name, c.Name, sub)
		}
		target := vm.MountPath
		if !filepath.IsAbs(target) {
			target = "/" + target
		}
		out = append(out, &runtimeapi.Mount{
			Image:         &runtimeapi.ImageSpec{Image: refs[vm.Name], UserSpecifiedImage: source.Reference},
			ContainerPath: target, Readonly: true, ImageSubPath: sub,
		})
	}
	return out, nil
}

// userns returns the ids of the pod's own user namespace, nil for those of the node.
func (p *startParams) userns() *runtimeapi.UserNamespace {
	options := p.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if options.GetMode() != runtimeapi.NamespaceMode_POD || len(options.GetUids()) == 0 {
		return nil
	}
	return options
}

// mapOwners lets a container with ids of its own see the owners of files as they are on the node.
func mapOwners(mounts []*runtimeapi.Mount, ids *runtimeapi.UserNamespace) {
	if ids == nil {
		return
	}
	for _, m := range mounts {
		if m.Image == nil {
			m.UidMappings, m.GidMappings = ids.Uids, ids.Gids
		}
	}
}
