package node

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// namesMax is how many names of an image the status tells at most, as the kubelet's.
const namesMax = 5

// Images are the images for the status: the largest first, at most so many; -1 is all, 0 none. Their names are those by
// digest and then those by tag. It is pure.
func Images(have []*runtimeapi.Image, most int) []v1.ContainerImage {
	if most == 0 {
		return nil
	}
	list := make([]v1.ContainerImage, 0, len(have))
	for _, image := range have {
		names := slices.Concat(image.GetRepoDigests(), image.GetRepoTags())
		if len(names) == 0 {
			continue // nobody can ask for it
		}
		list = append(list, v1.ContainerImage{
			Names: names[:min(len(names), namesMax)], SizeBytes: int64(image.GetSize()),
		})
	}
	smallsort.SortFunc(list, func(a, b v1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), slices.Compare(a.Names, b.Names))
	})
	if most > 0 {
		list = list[:min(len(list), most)]
	}
	return list
}
