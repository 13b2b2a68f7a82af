package imagegc

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Policy says when images go. Percentages are of the file system that holds the images.
type Policy struct {
	// HighPercent of the file system in use starts a collection; 100 is never.
	HighPercent int
	// LowPercent is what a collection works towards.
	LowPercent int
	// MinAge is how long an image was here before it may go.
	MinAge time.Duration
	// MaxAge is for how long an image may go unused; 0 is for ever.
	MaxAge time.Duration
}

// Usage is how full a file system is, in bytes.
type Usage struct {
	Mountpoint          string
	Capacity, Available uint64
}

// Percent is how much of the file system is in use, rounded up, so that a full one says 100.
func (u Usage) Percent() int {
	if u.Capacity == 0 {
		return 0
	}
	return 100 - int(u.Available*100/u.Capacity)
}

// Image is one image of the runtime.
type Image struct {
	// ID is the runtime's; Names are its tags, then its digests.
	ID    string
	Names []string
	Size  uint64
	// Pinned: the runtime itself says that the image is to stay.
	Pinned bool
	// Needed says who needs the image; "" if it is unused. See Needs.
	Needed string
	// Seen is when it was noticed first, Used when it was needed last; zero is not since the agent started.
	Seen, Used time.Time
}

// Name is how people call the image.
func (i Image) Name() string {
	if len(i.Names) > 0 {
		return i.Names[0]
	}
	return i.ID
}

// last is when there was reason to have the image.
func (i Image) last() time.Time {
	if i.Used.IsZero() {
		return i.Seen
	}
	return i.Used
}

// Excess returns how many bytes are to become free: none while less is in use than the high threshold.
func Excess(p Policy, u Usage) uint64 {
	if p.HighPercent >= 100 || u.Capacity == 0 || u.Percent() < p.HighPercent {
		return 0
	}
	want := u.Capacity / 100 * uint64(100-p.LowPercent)
	if want <= u.Available {
		return 0
	}
	return want - u.Available
}

// Removable returns the images that may be removed, the least recently used one first. An image that was not used yet
// counts as used when it was first seen. Of equal ones the largest is first, so that fewer are removed. Images that
// were there when the agent started count as seen then.
func Removable(list []Image, minAge time.Duration, now time.Time) []Image {
	var out []Image
	for _, i := range list {
		if i.Needed == "" && !i.Pinned && now.Sub(i.Seen) >= minAge {
			out = append(out, i)
		}
	}
	smallsort.SortStableFunc(out, func(a, b Image) int {
		return cmp.Or(a.last().Compare(b.last()), cmp.Compare(b.Size, a.Size), strings.Compare(a.ID, b.ID))
	})
	return out
}

// Expired returns the removable images that were unused for longer than maxAge; none if maxAge is 0.
func Expired(removable []Image, maxAge time.Duration, now time.Time) []Image {
	if maxAge <= 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(removable), func(i Image) bool { return now.Sub(i.last()) <= maxAge })
}

// Needs is what must not go, by name or id.
type Needs struct {
	// Used are the images of containers, running or ended.
	Used []string
	// Wanted are those that the pods of this node name.
	Wanted []string
	// Sandbox are those that the runtime makes sandboxes of.
	Sandbox []string
	// Keep are patterns of names; see ReadKeep.
	Keep []string
}

// PodImages returns the images that a pod names.
func PodImages(pod *v1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Image)
	}
	for i := range pod.Spec.EphemeralContainers {
		names = append(names, pod.Spec.EphemeralContainers[i].Image)
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			names = append(names, image.Reference)
		}
	}
	return names
}

// Wants reports whether a pod needs its images: one that has ended for good does not, unless its manifest is on this
// device, where it may fit later.
func Wants(pod *v1.Pod, phase v1.PodPhase) bool {
	return source.IsStatic(pod) || !status.Terminal(phase)
}

// Who needs an image.
const (
	NeededByContainer = "container"
	NeededByPod       = "pod"
	NeededBySandbox   = "sandbox"
	NeededByKeep      = "kept"
)

// Mark fills in who needs each image.
func (n Needs) Mark(list []Image) {
	used, wanted, sandbox := set(n.Used), set(n.Wanted), set(n.Sandbox)
	for k := range list {
		i := &list[k]
		i.Needed = ""
		switch {
		case i.in(used):
			i.Needed = NeededByContainer
		case i.in(wanted):
			i.Needed = NeededByPod
		case i.in(sandbox) || slices.ContainsFunc(i.Names, isPause):
			i.Needed = NeededBySandbox
		case slices.ContainsFunc(i.Names, n.keepsName) || n.keepsName(i.ID):
			i.Needed = NeededByKeep
		}
	}
}

// in reports whether an image is in a set by any of its names.
func (i *Image) in(names map[string]bool) bool {
	return names[bare(i.ID)] || slices.ContainsFunc(i.Names, func(name string) bool { return names[name] })
}

func (n Needs) keepsName(name string) bool {
	return slices.ContainsFunc(n.Keep, func(pattern string) bool { return Matches(pattern, name) })
}

// Matches reports whether a pattern means an image: its whole name or ID, or one with * and ? for parts of it, within a
// '/'.
func Matches(pattern, name string) bool {
	if full, err := images.Normalize(pattern); err == nil && full == name {
		return true
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// isPause knows a sandbox's image by its name, for runtimes that do not say which one theirs is: it is small, and no
// pod starts without it.
func isPause(name string) bool {
	base := path.Base(name)
	if at := strings.IndexAny(base, ":@"); at >= 0 {
		base = base[:at]
	}
	return base == "pause"
}

// set holds names in all the forms by which a runtime may know them.
func set(names []string) map[string]bool {
	out := make(map[string]bool, 2*len(names))
	for _, name := range names {
		for _, form := range forms(name) {
			out[form] = true
		}
	}
	return out
}

// forms returns a name as written, complete, by its digest alone, and as an id.
func forms(name string) []string {
	if name == "" {
		return nil
	}
	out := []string{name, bare(name)}
	full, err := images.Normalize(name)
	if err != nil {
		return out
	}
	out = append(out, full)
	ref, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return out
	}
	if digested, ok := ref.(reference.Digested); ok {
		out = append(out, reference.TrimNamed(ref).Name()+"@"+digested.Digest().String())
	}
	return out
}

// bare is an id without its algorithm.
func bare(id string) string { return strings.TrimPrefix(id, "sha256:") }
