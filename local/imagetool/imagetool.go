// Package imagetool lists, pulls, imports and removes images of this device by way of the container runtime, for the
// commands of `edgecore images`. Most of it works without the agent.
//
// It owns the rules of these commands: which images are needed, and what to do about a runtime or an agent that does
// not answer. Package imagegc decides which images may go, and package images pulls and imports them.
//
// It promises that Prune removes no image that the agent would keep, provided that the names from PodImages are given.
// An image that is to be kept is on the keep list before it is reported.
package imagetool

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

const (
	// runtimeTimeout bounds a request to the runtime, which is on this device. A pull has no such bound.
	runtimeTimeout = 2 * time.Minute
	// reportEvery is how often Pull reports its progress.
	reportEvery = 5 * time.Second
	// maxAuthFile bounds a docker configuration.
	maxAuthFile = 1 << 20
)

// Agent is the agent of this device; see package agentclient.
type Agent interface {
	Status(ctx context.Context) (*server.Info, error)
	Pods(ctx context.Context) (*v1.PodList, error)
}

// Tool works on the images of one device. Close it after use.
type Tool struct {
	agent    Agent
	client   *cri.Client
	state    state
	endpoint string
	rootDir  string
	keepFile string
}

// state is the runtime as packages imagegc and images see it.
type state interface {
	imagegc.State
	images.Meter
}

// Open makes a tool for the runtime of a configuration. It asks nothing yet.
func Open(own *v1alpha2.Edged, agent Agent) (*Tool, error) {
	k := &own.TailoredKubeletConfig
	client, err := cri.Dial(k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint, runtimeTimeout)
	if err != nil {
		return nil, err
	}
	return &Tool{
		agent:    agent,
		client:   client,
		state:    &imagegc.CRI{Client: client},
		endpoint: k.ContainerRuntimeEndpoint,
		rootDir:  own.RootDirectory,
		keepFile: imagegc.KeepFile(own.RootDirectory),
	}, nil
}

// Close ends the connections to the runtime.
func (t *Tool) Close() {
	if err := t.client.Close(); err != nil {
		klog.V(2).InfoS("Connection to the runtime not closed", "err", err)
	}
}

// explain says what to do about a runtime that does not answer.
func (t *Tool) explain(err error) error {
	if cri.IsDown(err) {
		return fmt.Errorf("the container runtime does not answer at %s (is it running? try: systemctl status "+
			"containerd): %w", t.endpoint, err)
	}
	return err
}

// PodImages asks the agent which images its pods need. It fails if the agent does not answer, and if the agent's store
// was damaged or rolled back, because the agent may not know all pods then.
func (t *Tool) PodImages(ctx context.Context) ([]string, error) {
	info, err := t.agent.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range info.Conditions {
		if c.Code == health.StoreRecovered || c.Code == health.StoreRolledBack {
			return nil, fmt.Errorf("the store of the agent is not complete (%s), and it may not know all pods until "+
				"the cloud has sent them again", c.Detail)
		}
	}
	pods, err := t.agent.Pods(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range pods.Items {
		if p := &pods.Items[i]; imagegc.Wants(p, p.Status.Phase) {
			names = append(names, imagegc.PodImages(p)...)
		}
	}
	return names, nil
}

// List returns the images by name, each with what needs it. podImages are the names that pods need; see PodImages.
func (t *Tool) List(ctx context.Context, podImages []string) ([]imagegc.Image, error) {
	list, err := t.state.Images(ctx)
	if err != nil {
		return nil, t.explain(err)
	}
	used, err := t.state.InUse(ctx)
	if err != nil {
		return nil, t.explain(err)
	}
	sandbox, err := t.state.Sandbox(ctx)
	if err != nil {
		return nil, t.explain(err)
	}
	keep, err := imagegc.ReadKeep(t.keepFile)
	if err != nil {
		return nil, fmt.Errorf("keep list: %w", err)
	}
	ids, err := imagegc.ShortNames(ctx, t.state, podImages, map[string]string{})
	if err != nil {
		return nil, t.explain(err)
	}
	imagegc.Needs{Used: used, Wanted: slices.Concat(podImages, ids), Sandbox: sandbox, Keep: keep}.Mark(list)
	smallsort.SortFunc(list, func(a, b imagegc.Image) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// Usage measures the file system that holds the images.
func (t *Tool) Usage(ctx context.Context) (imagegc.Usage, error) {
	u, err := t.state.Usage(ctx)
	if err != nil {
		return imagegc.Usage{}, t.explain(err)
	}
	return u, nil
}

// Pulled is an image that was pulled.
type Pulled struct {
	// Name is the name by which the runtime lists the image.
	Name string
	// Size is in bytes, 0 if the runtime does not say.
	Size uint64
	// Progress is how the pull went.
	Progress images.Progress
}

// Pull pulls an image with the credentials of authFile, a docker configuration, or with the node's own if that is "".
// keep puts the image on the keep list. report is called every few seconds with the progress of the pull.
func (t *Tool) Pull(
	ctx context.Context, image, authFile string, keep bool, report func(images.Progress),
) (Pulled, error) {
	secrets, err := readAuth(authFile)
	if err != nil {
		return Pulled{}, err
	}
	name, done, err := images.New(t.client.Images, t.pullOptions()).Pull(ctx, image, secrets, report)
	if err != nil {
		return Pulled{}, fmt.Errorf("pull %s: %w", image, t.explain(err))
	}
	here := t.image(ctx, name)
	if name, err = listedName(name, here); err != nil {
		return Pulled{}, err
	}
	if err := t.addToKeepList(name, keep); err != nil {
		return Pulled{}, err
	}
	return Pulled{Name: name, Size: here.GetSize(), Progress: done}, nil
}

// listedName returns the name by which the runtime lists an image that was asked for by name. A short name is one of a
// registry that the runtime has chosen.
func listedName(name string, here *runtimeapi.Image) (string, error) {
	full, err := images.Normalize(name)
	if err != nil {
		return "", err
	}
	names := slices.Concat(here.GetRepoTags(), here.GetRepoDigests())
	if images.HasRegistry(name) || slices.Contains(names, full) {
		return full, nil
	}
	base := full[strings.LastIndex(full, "/"):]
	for _, listed := range names {
		if strings.HasSuffix(listed, base) {
			return listed, nil
		}
	}
	return full, nil
}

// pullOptions let a pull find the node's credentials where the agent finds them.
func (t *Tool) pullOptions() images.Options {
	return images.Options{Meter: t.state, ReportEvery: reportEvery, CredentialsDir: t.rootDir}
}

// readAuth reads a docker configuration as a pull secret.
func readAuth(file string) ([]v1.Secret, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAuthFile))
	if err != nil {
		return nil, err
	}
	secret := v1.Secret{
		Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: data},
	}
	secret.Namespace, secret.Name = "file", file
	return []v1.Secret{secret}, nil
}

// Import imports the images of an archive, and calls imported with the name and size of each. keep puts them on the
// keep list.
func (t *Tool) Import(ctx context.Context, file string, keep bool, imported func(name string, size uint64)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := images.ArchiveNames(f)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if len(names) == 0 {
		return fmt.Errorf("%s: none of its images has a name; save them by name and tag, as: docker save NAME:TAG",
			file)
	}
	socket, err := cri.SocketPath(t.endpoint)
	if err != nil {
		return err
	}
	loader := images.Loader{Runtime: t.client, Images: t.client.Images, Socket: socket}
	if err := loader.Load(ctx, file); err != nil {
		return fmt.Errorf("import %s: %w", file, t.explain(err))
	}
	for _, name := range names {
		if err := loader.Await(ctx, name); err != nil {
			return err
		}
		if err := t.addToKeepList(name, keep); err != nil {
			return err
		}
		imported(name, t.image(ctx, name).GetSize())
	}
	return nil
}

// addToKeepList puts an image that is on the device on the keep list, if that is asked for.
func (t *Tool) addToKeepList(name string, keep bool) error {
	if !keep {
		return nil
	}
	if err := imagegc.AddKeep(t.keepFile, name); err != nil {
		return fmt.Errorf("the image is here, and could not be put on the keep list: %w", err)
	}
	return nil
}

// image returns an image of the runtime, nil if it does not have it.
func (t *Tool) image(ctx context.Context, name string) *runtimeapi.Image {
	resp, err := t.client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: name},
	})
	if err != nil {
		return nil
	}
	return resp.GetImage()
}

// Pruned is what Prune did.
type Pruned struct {
	// Images is how many were removed, or would be.
	Images int
	// Usage is the file system after the removals, Freed how many bytes became free there. Both are zero if nothing was
	// removed.
	Usage imagegc.Usage
	Freed uint64
}

// Prune removes the images that nothing needs, and calls removed for each. dryRun removes nothing, and calls removed
// for each image that would go. podImages are the names that pods need; see PodImages.
func (t *Tool) Prune(
	ctx context.Context, podImages []string, dryRun bool, removed func(imagegc.Image),
) (Pruned, error) {
	list, err := t.List(ctx, podImages)
	if err != nil {
		return Pruned{}, err
	}
	before, err := t.Usage(ctx)
	if err != nil {
		return Pruned{}, err
	}
	unused := imagegc.Removable(list, 0, time.Now())
	for _, i := range unused {
		if !dryRun {
			if err := t.state.Remove(ctx, i.ID); err != nil {
				return Pruned{}, fmt.Errorf("remove %s: %w", i.Name(), t.explain(err))
			}
		}
		removed(i)
	}
	p := Pruned{Images: len(unused)}
	if dryRun || len(unused) == 0 {
		return p, nil
	}
	if p.Usage, err = t.Usage(ctx); err != nil {
		return Pruned{}, err
	}
	if p.Usage.Available > before.Available {
		p.Freed = p.Usage.Available - before.Available
	}
	return p, nil
}
