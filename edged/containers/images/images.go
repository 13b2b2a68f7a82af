// Package images pulls images: the pull policy, credentials from pull secrets, one pull at a time or several, and the
// backoff of pulls that fail. Reasons, messages and events are the kubelet's.
//
// Two containers that want the same image with the same credentials share one pull. A pull is cancelled when its last
// waiter is gone, or when it makes no progress; it has no overall timeout (progress.go).
package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// The kubelet's reasons for a container that waits for its image.
const (
	ErrImagePull        = "ErrImagePull"
	ImagePullBackOff    = "ImagePullBackOff"
	ErrImageNeverPull   = "ErrImageNeverPull"
	InvalidImageName    = "InvalidImageName"
	ImageInspectError   = "ImageInspectError"
	RegistryUnavailable = "RegistryUnavailable"
	SignatureInvalid    = "SignatureValidationFailed"
)

const (
	eventPulling = "Pulling"
	eventPulled  = "Pulled"
	eventFailed  = "Failed"
	eventBackOff = "BackOff"
	eventInspect = "InspectFailed"
	eventNever   = "ErrImageNeverPull"
)

const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 5 * time.Minute
	// showFailure is how long a failed pull is shown as such.
	showFailure = time.Second
)

// Options configure a Puller.
type Options struct {
	// Serialize allows one pull at a time on the node.
	Serialize bool
	// MaxParallel bounds pulls that are not serialized; 0 is no bound.
	MaxParallel int
	// QPS and Burst bound how often a pull begins; QPS 0 is no bound.
	QPS      float64
	Burst    int
	Recorder events.Interface
	// Records is the folder of the records of which credentials pulled which image. If empty, none are kept, and every
	// pod may use each image on the node. Verify and Allowlist say who may use images that were here before.
	Records   string
	Verify    Policy
	Allowlist []string
	// CredentialsDir is the folder in which the node's own credentials are looked for first; empty: the node has none.
	CredentialsDir string
	// Meter shows the progress of pulls; nil shows none, and no pull is given up.
	Meter Meter
	// Pulled is called after each pull; it may be nil, and must not block.
	Pulled func()
	// ProgressTimeout is how long a pull may go without progress; 0 is DefaultProgressTimeout.
	ProgressTimeout time.Duration
	// Repair is called when a pull failed. It returns true if it removed the cause or got the image in another way. It
	// may be nil.
	Repair func(ctx context.Context, image string, failure error) bool
	// ReportEvery is how often the progress of a pull is reported; 0 means after a minute, and then each time after
	// twice as long.
	ReportEvery time.Duration
}

// Puller ensures images. Its methods may be called from any goroutine.
type Puller struct {
	client runtimeapi.ImageServiceClient
	opts   Options
	access *access
	limit  *rate.Limiter

	mu sync.Mutex
	// slots bounds pulls; nil is no bound.
	slots   chan struct{}
	pulls   map[string]*pull
	backoff map[string]*retry
}

// retry is the backoff of one image for one pod.
type retry struct {
	delay time.Duration
	until time.Time
	why   string
}

// New makes a Puller.
func New(client runtimeapi.ImageServiceClient, opts Options) *Puller {
	if opts.ProgressTimeout <= 0 {
		opts.ProgressTimeout = DefaultProgressTimeout
	}
	if opts.Verify == "" {
		opts.Verify = kubeletconfig.NeverVerifyPreloadedImages
	}
	p := &Puller{
		client:  client,
		opts:    opts,
		access:  &access{dir: opts.Records, policy: opts.Verify, allow: opts.Allowlist},
		pulls:   map[string]*pull{},
		backoff: map[string]*retry{},
	}
	p.limit = rate.NewLimiter(rate.Inf, 1)
	p.SetPullLimits(opts.PullLimits())
	return p
}

// EnsureImage returns the reference by which to run a container's image, or why it is not there yet and when to try
// again. It returns when the image is there, the pull failed, or ctx ended. Every failure is an event Failed beside
// those that say what was tried.
func (p *Puller) EnsureImage(
	ctx context.Context, pod *v1.Pod, c *v1.Container, secrets []v1.Secret, sandbox *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	ref, why, retryAt := p.ensure(ctx, pod, c, secrets, sandbox)
	if why != nil && ctx.Err() == nil {
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, eventFailed, "Error: %s", why.Reason)
	}
	return ref, why, retryAt
}

// ensure is EnsureImage without its last event.
func (p *Puller) ensure(
	ctx context.Context, pod *v1.Pod, c *v1.Container, secrets []v1.Secret, sandbox *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	name, err := WithDefaultTag(c.Image)
	if err != nil {
		why := observed.Reason{
			Reason: InvalidImageName, Message: fmt.Sprintf("Failed to apply default image tag %q: %v", c.Image, err),
		}
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, eventInspect, "%s", why.Message)
		return "", &why, time.Time{}
	}
	spec := &runtimeapi.ImageSpec{Image: name, Annotations: pod.Annotations}
	policy := policyOf(c)
	ref := ""
	if policy != v1.PullAlways {
		ref, err = p.present(ctx, spec)
	}
	if err != nil {
		// The kubelet names no image here: it has none yet.
		why := observed.Reason{
			Reason: ImageInspectError, Message: fmt.Sprintf("Failed to inspect image %q: %v", "", err),
		}
		if ctx.Err() == nil {
			p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, eventInspect, "%s", why.Message)
		}
		return "", &why, time.Now().Add(firstBackoff)
	}
	may := ref != "" && p.mayUse(pod, ref, name, secrets)
	switch {
	case may:
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeNormal, eventPulled,
			"Container image %q already present on machine and can be accessed by the pod", c.Image)
		return ref, nil, time.Time{}
	case policy == v1.PullNever: // also of one that is here, but for other credentials: that is not this pod's to know
		why := observed.Reason{
			Reason:  ErrImageNeverPull,
			Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image),
		}
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, eventNever, "%s", why.Message)
		return "", &why, time.Now().Add(firstBackoff)
	}
	return p.pullFor(ctx, pod, c, spec, secrets, sandbox)
}

// mayUse reports whether a pod may use an image that is on the node.
func (p *Puller) mayUse(pod *v1.Pod, id, name string, secrets []v1.Secret) bool {
	creds, _ := credentials(secrets, nil, name) // what cannot be read is reported when it is pulled with
	may, err := p.access.allowed(id, name, creds)
	if err != nil {
		klog.ErrorS(err, "The image counts as preloaded", "pod", klog.KObj(pod), "image", name)
	}
	return may
}

// notePull keeps who pulled an image, and forgets images that are gone.
func (p *Puller) notePull(ctx context.Context, image *runtimeapi.Image, name string, by *credential) {
	if p.opts.Records == "" || image.GetId() == "" {
		return
	}
	err := p.access.pulled(image.Id, name, by, append(slices.Clone(image.RepoTags), image.RepoDigests...))
	if list, listErr := p.client.ListImages(ctx, &runtimeapi.ListImagesRequest{}); listErr == nil {
		var ids []string
		for _, i := range list.Images {
			ids = append(ids, i.Id)
		}
		err = errors.Join(err, p.access.prune(ids))
	}
	if err != nil {
		klog.ErrorS(err, "Record of who pulled the image not stored; any pod may use it", "image", name)
	}
}

// policyOf is a container's pull policy; a pod from an API server always has one.
func policyOf(c *v1.Container) v1.PullPolicy {
	switch {
	case c.ImagePullPolicy != "":
		return c.ImagePullPolicy
	case strings.HasSuffix(c.Image, ":latest"), !strings.Contains(c.Image[strings.LastIndex(c.Image, "/")+1:], ":"):
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// WithDefaultTag returns the name by which the runtime is asked for an image: as it is written, and with the tag
// "latest" where it has neither tag nor digest. It adds no registry: a runtime looks short names up in its own way
// (CRI-O has aliases, a list of registries, and localhost/ for images built on the device), and an ID has none.
func WithDefaultTag(image string) (string, error) {
	named, err := parse(image)
	if err != nil {
		return "", err
	}
	if reference.IsNameOnly(named) {
		return image + ":latest", nil
	}
	return image, nil
}

// Normalize completes an image's name: the registry's host, and the tag "latest" where there is neither
// tag nor digest. Names are compared in this form only; a runtime gets that of WithDefaultTag. An ID is complete.
func Normalize(image string) (string, error) {
	if IsID(image) {
		return image, nil
	}
	named, err := parse(image)
	if err != nil {
		return "", err
	}
	return reference.TagNameOnly(named).String(), nil
}

// WithDigest returns the complete name of what has a digest in the repository of an image.
func WithDigest(image, digest string) (string, error) {
	if IsID(image) {
		return "", fmt.Errorf("%s is the ID of an image, which does not tell its repository", image)
	}
	named, err := parse(image)
	if err != nil {
		return "", err
	}
	if !IsID(digest) {
		return "", fmt.Errorf("%q is not a SHA-256 digest", digest)
	}
	return reference.TrimNamed(named).String() + "@" + digest, nil
}

// Repository returns the complete name of the repository of an image; "" for a name that has none.
func Repository(image string) string {
	if IsID(image) {
		return ""
	}
	named, err := parse(image)
	if err != nil {
		return ""
	}
	return reference.TrimNamed(named).String()
}

// IsID reports whether a name is the ID of an image, as containerd writes it.
func IsID(image string) bool {
	hex, ok := strings.CutPrefix(image, "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

// HasRegistry reports whether a name says which registry the image is of. Any other is for the runtime to look up.
func HasRegistry(image string) bool {
	named, err := parse(image)
	return err == nil && strings.HasPrefix(image, reference.Domain(named)+"/")
}

func parse(image string) (reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	return named, nil
}

// present returns the reference of an image that is on the node, or "".
func (p *Puller) present(ctx context.Context, spec *runtimeapi.ImageSpec) (string, error) {
	resp, err := p.client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return "", err
	}
	return resp.GetImage().GetId(), nil
}

// pullFor pulls an image for a container, with its backoff and its events.
func (p *Puller) pullFor(
	ctx context.Context, pod *v1.Pod, c *v1.Container, spec *runtimeapi.ImageSpec, secrets []v1.Secret,
	sandbox *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	key := string(pod.UID) + "_" + spec.Image
	if r, waiting := p.waiting(key); waiting {
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeNormal, eventBackOff, "Back-off pulling image %q", c.Image)
		return "", &observed.Reason{
			Reason: ImagePullBackOff, Message: fmt.Sprintf("Back-off pulling image %q: %s", c.Image, r.why),
		}, r.until
	}
	creds, err := credentials(secrets, p.node(), spec.Image)
	if err != nil {
		// Another secret might let the pod in, as another user than the author of this one meant.
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, eventFailed, "Failed to pull image %q: %v",
			c.Image, err)
		p.failed(key, ErrImagePull+": "+err.Error())
		return "", &observed.Reason{Reason: ErrImagePull, Message: err.Error()}, time.Now().Add(showFailure)
	}
	p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeNormal, eventPulling, "Pulling image %q", c.Image)
	began := time.Now()
	slow := func(done Progress) {
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeNormal, eventPulling, "Pulling image %q: %v so far",
			c.Image, done)
	}
	want := request{spec: spec, creds: creds, sandbox: sandbox, slow: slow}
	ref, used, done, err := p.share(ctx, want)
	if err != nil && ctx.Err() == nil && p.opts.Repair != nil && p.opts.Repair(ctx, spec.Image, err) {
		if here, statErr := p.present(ctx, spec); statErr == nil && here != "" && policyOf(c) != v1.PullAlways &&
			p.mayUse(pod, here, spec.Image, secrets) {
			p.succeeded(key)
			p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeNormal, eventPulled,
				"Container image %q came from an archive on this device", c.Image)
			return here, nil, time.Time{}
		}
		ref, used, done, err = p.share(ctx, want)
	}
	if err == nil {
		p.succeeded(key)
		image := p.image(ctx, spec)
		p.notePull(ctx, image, spec.Image, pulledBy(creds, used))
		if p.opts.Pulled != nil {
			p.opts.Pulled()
		}
		rate := ""
		if done.Received > 0 {
			rate = " It " + done.String() + "."
		}
		p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeNormal, eventPulled,
			"Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.%s",
			c.Image, done.Took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), image.GetSize(),
			rate)
		return ref, nil, time.Time{}
	}
	if ctx.Err() != nil {
		return "", &observed.Reason{
			Reason: ErrImagePull, Message: "pull of " + c.Image + " ended: " + ctx.Err().Error(),
		}, time.Time{}
	}
	text := pullError(err)
	p.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, eventFailed, "Failed to pull image %q: %s", c.Image,
		text)
	reason, message := explain(c.Image, text)
	p.failed(key, reason+": "+message)
	// A look soon after turns the failure into the backoff that it begins.
	return "", &observed.Reason{Reason: reason, Message: message}, time.Now().Add(showFailure)
}

// explain sorts the failures that a runtime names by themselves from the others. It is pure.
func explain(image, text string) (reason, message string) {
	for named, means := range map[string]string{
		RegistryUnavailable: "the registry is unavailable", SignatureInvalid: "the signature validation failed",
	} {
		if rest, ok := strings.CutPrefix(text, named); ok {
			return named, fmt.Sprintf("image pull failed for %s because %s%s", image, means, rest)
		}
	}
	return ErrImagePull, text
}

// image is what the runtime knows of an image that was pulled; nil when it cannot be asked.
func (p *Puller) image(ctx context.Context, spec *runtimeapi.ImageSpec) *runtimeapi.Image {
	resp, err := p.client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return nil
	}
	return resp.GetImage()
}

func (p *Puller) waiting(key string) (retry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.backoff[key]; r != nil && time.Now().Before(r.until) {
		return *r, true
	}
	return retry{}, false
}

// failed counts a failure, and puts the next try off.
func (p *Puller) failed(key, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for k, old := range p.backoff {
		if now.Sub(old.until) > 2*maxBackoff {
			delete(p.backoff, k)
		}
	}
	r := p.backoff[key]
	if r == nil {
		r = &retry{}
		p.backoff[key] = r
	}
	r.delay = min(max(2*r.delay, firstBackoff), maxBackoff)
	r.until, r.why = now.Add(r.delay), why
}

func (p *Puller) succeeded(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.backoff, key)
}

// pullError returns the message for a failed pull. It leaves out gRPC's prefix for an unknown code, and keeps that of
// any other code. Tries with several credentials are a list, each failure once. It is pure.
func pullError(err error) string {
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	var texts []string
	for _, one := range list {
		text := one.Error()
		if s, ok := status.FromError(one); ok && s.Code() == codes.Unknown {
			text = s.Message()
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
