// Package imagegc removes unused images from the node: when the file system that holds them fills, when an image was
// not used for too long, or when something else needs the room.
//
// It promises that none goes which a container has, running or ended; which a pod names that is to run here, whether it
// has started or not; which is the sandbox's, or pinned in the runtime, or on the keep list of the site. While it is
// not known which pods are to run here, nothing goes at all: on a device without a link, what is removed does not come
// back.
//
// What goes, and in which order, is decided by pure functions over a snapshot (plan.go). After each removal the file
// system is measured again, since images share layers: a collection ends as soon as there is room, or when nothing is
// left to remove. When images were used is remembered in memory only, in monotonic time: nothing is written to the disk
// for it, and no jump of the clock ages an image.
package imagegc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/images"
)

// State is the runtime, as far as images go.
type State interface {
	// Images returns all images, without who needs them.
	Images(ctx context.Context) ([]Image, error)
	// InUse returns the images of all containers, by name or id.
	InUse(ctx context.Context) ([]string, error)
	// Sandbox returns the images of sandboxes, as far as the runtime reports them.
	Sandbox(ctx context.Context) ([]string, error)
	// Resolve returns the ID of the image that the runtime has by a name, "" if it has none.
	Resolve(ctx context.Context, name string) (string, error)
	// Usage measures the file system that holds the images.
	Usage(ctx context.Context) (Usage, error)
	// Remove removes an image with all its names.
	Remove(ctx context.Context, id string) error
}

// Options configure a Collector.
type Options struct {
	State  State
	Policy Policy
	// Wanted returns the images that pods of this node name; ok is false while not all pods are known.
	Wanted func() (names []string, ok bool)
	// KeepFile is the keep list; "" is none.
	KeepFile string
}

// Result is what a collection did.
type Result struct {
	Removed []Image
	// Freed is how much more room the file system has, in bytes, as measured.
	Freed uint64
}

// ErrUnknown says that nothing may be removed yet.
var ErrUnknown = errors.New("the pods of this node are not all known yet; no image is removed before")

// NotEnoughError says that a collection could not make the room that it was to make.
type NotEnoughError struct {
	Usage       Usage
	Want, Freed uint64
}

func (e *NotEnoughError) Error() string {
	return fmt.Sprintf("Failed to garbage collect required amount of images. Attempted to free %d bytes, but only "+
		"found %d bytes eligible to free. "+
		"%s is %d%% full, and all other images are needed", e.Want, e.Freed, e.Usage.Mountpoint, e.Usage.Percent())
}

// Collector removes images. Its methods may be called from any goroutine; one collection runs at a time.
type Collector struct {
	opts   Options
	policy atomic.Pointer[Policy]

	mu    sync.Mutex
	known map[string]times
	// resolved are the IDs of images by short names, as the runtime knew them at the last look.
	resolved map[string]string

	removed *prometheus.CounterVec

	usedMu sync.Mutex
	// used are the uses that readImages has not counted yet, by name.
	used map[string]time.Time
}

// times are what is remembered of an image.
type times struct{ seen, used time.Time }

// New makes a Collector.
func New(opts Options) *Collector {
	c := &Collector{
		opts:     opts,
		known:    map[string]times{},
		resolved: map[string]string{},
		used:     map[string]time.Time{},
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_garbage_collected_total", Help: "Unused images that were removed, by reason",
		}, []string{"reason"}),
	}
	c.policy.Store(&opts.Policy)
	return c
}

// SetPolicy changes Options.Policy, from the next collection on.
func (c *Collector) SetPolicy(p Policy) { c.policy.Store(&p) }

// Why images go, as the metric says it.
const (
	reasonAge   = "age"
	reasonSpace = "space"
)

// Metrics counts the images that were removed.
func (c *Collector) Metrics() prometheus.Collector { return c.removed }

// maxUses bounds the uses that are remembered until the next look; what is beyond is as if it was not used since the
// last one.
const maxUses = 4096

// Used notes that something used images until now: between two looks pods come and go.
func (c *Collector) Used(names ...string) {
	now := time.Now()
	c.usedMu.Lock()
	defer c.usedMu.Unlock()
	for _, name := range names {
		for _, form := range forms(name) {
			if len(c.used) < maxUses {
				c.used[form] = now
			}
		}
	}
}

// takeUses returns the uses since the last look.
func (c *Collector) takeUses() map[string]time.Time {
	c.usedMu.Lock()
	defer c.usedMu.Unlock()
	uses := c.used
	c.used = map[string]time.Time{}
	return uses
}

// Collect notices which images are used, and removes those that are too old, and as many as the thresholds ask for. A
// NotEnoughError is among the errors where that was not enough.
func (c *Collector) Collect(ctx context.Context) (Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, err := c.readImages(ctx)
	if err != nil {
		return Result{}, err
	}
	now, policy := time.Now(), *c.policy.Load()
	var res Result
	removable := Removable(list, policy.MinAge, now)
	if old := Expired(removable, policy.MaxAge, now); len(old) > 0 {
		if res, err = c.remove(ctx, old, reasonAge, func(Usage) bool { return false }); err != nil {
			return res, err
		}
	}
	usage, err := c.opts.State.Usage(ctx)
	if err != nil {
		return res, err
	}
	want := Excess(policy, usage)
	if want == 0 {
		return res, nil
	}
	level := klog.V(0)
	if len(removable) == 0 { // a condition of the node says so, once
		level = klog.V(2)
	}
	level.InfoS("The image file system fills up; removing unused images", "mountpoint", usage.Mountpoint,
		"usedPercent", usage.Percent(),
		"highThresholdPercent", policy.HighPercent, "lowThresholdPercent", policy.LowPercent, "toFree", want)
	target := usage.Available + want
	more, err := c.remove(ctx, removable, reasonSpace, func(u Usage) bool { return u.Available >= target })
	res.Removed, res.Freed = append(res.Removed, more.Removed...), res.Freed+more.Freed
	if err != nil {
		return res, err
	}
	if after, err := c.opts.State.Usage(ctx); err == nil && after.Available < target {
		return res, &NotEnoughError{Usage: after, Want: want, Freed: more.Freed}
	}
	return res, nil
}

// Free removes unused images until enough returns true, regardless of thresholds; a nil enough removes all of them.
func (c *Collector) Free(ctx context.Context, enough func(context.Context) bool) (Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, err := c.readImages(ctx)
	if err != nil {
		return Result{}, err
	}
	return c.remove(ctx, Removable(list, c.policy.Load().MinAge, time.Now()), reasonSpace, func(Usage) bool {
		return enough != nil && enough(ctx)
	})
}

// List returns the images with who needs them and when they were used.
func (c *Collector) List(ctx context.Context) ([]Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readImages(ctx)
}

// readImages reads the images, and remembers when they were seen and used.
func (c *Collector) readImages(ctx context.Context) ([]Image, error) {
	list, err := c.opts.State.Images(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	c.resolved = map[string]string{}
	if err := c.markNeeded(ctx, list); err != nil {
		return nil, err
	}
	now, uses := time.Now(), c.takeUses()
	known := make(map[string]times, len(list))
	for k := range list {
		i := &list[k]
		t, ok := c.known[i.ID]
		if !ok {
			t.seen = now
		}
		if i.Needed == NeededByContainer || i.Needed == NeededByPod {
			t.used = now
		}
		for _, name := range append(i.Names, bare(i.ID)) {
			if use := uses[name]; use.After(t.used) {
				t.used = use
			}
		}
		i.Seen, i.Used = t.seen, t.used
		known[i.ID] = t
	}
	c.known = known
	return list, nil
}

// markNeeded fills in who needs the images.
func (c *Collector) markNeeded(ctx context.Context, list []Image) error {
	wanted, ok := c.opts.Wanted()
	if !ok {
		return ErrUnknown
	}
	ids, err := ShortNames(ctx, c.opts.State, wanted, c.resolved)
	if err != nil {
		return err
	}
	wanted = slices.Concat(wanted, ids)
	used, err := c.opts.State.InUse(ctx)
	if err != nil {
		return fmt.Errorf("images in use: %w", err)
	}
	sandbox, err := c.opts.State.Sandbox(ctx)
	if err != nil {
		return fmt.Errorf("image of sandboxes: %w", err)
	}
	var keep []string
	if c.opts.KeepFile != "" {
		if keep, err = ReadKeep(c.opts.KeepFile); err != nil {
			return fmt.Errorf("keep list of images: %w; no image is removed until it can be read", err)
		}
	}
	Needs{Used: used, Wanted: wanted, Sandbox: sandbox, Keep: keep}.Mark(list)
	return nil
}

// ShortNames returns the IDs of the images that short names stand for. Only the runtime knows which registry it finds
// such a name in: the image may have another name than the complete form of the short one. known has the answers so
// far, and gets the new ones.
func ShortNames(ctx context.Context, state State, names []string, known map[string]string) ([]string, error) {
	var ids []string
	for _, name := range names {
		asked, err := images.WithDefaultTag(name)
		if err != nil || images.HasRegistry(name) {
			continue
		}
		id, ok := known[asked]
		if !ok {
			if id, err = state.Resolve(ctx, asked); err != nil {
				return nil, fmt.Errorf("image %s: %w", asked, err)
			}
			known[asked] = id
		}
		if id != "" {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// remove removes images one by one until enough is true of the usage, which is measured after each.
func (c *Collector) remove(
	ctx context.Context, list []Image, reason string, enough func(Usage) bool,
) (res Result, err error) {
	before, err := c.opts.State.Usage(ctx)
	if err != nil {
		return res, err
	}
	var errs []error
	for _, i := range list {
		if ctx.Err() != nil {
			return res, ctx.Err()
		}
		now, err := c.opts.State.Usage(ctx)
		if err != nil {
			return res, err
		}
		res.Freed = freed(before, now)
		if enough(now) {
			return res, errors.Join(errs...)
		}
		// Who needs what may have changed since the list was made: removals take their time.
		one := []Image{i}
		if err := c.markNeeded(ctx, one); err != nil {
			return res, errors.Join(append(errs, err)...)
		}
		if one[0].Needed != "" {
			continue
		}
		if err := c.opts.State.Remove(ctx, i.ID); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", i.Name(), err))
			continue
		}
		delete(c.known, i.ID)
		res.Removed = append(res.Removed, i)
		klog.InfoS("Image removed", "image", i.Name(), "imageID", i.ID, "size", i.Size, "reason", reason)
		c.removed.WithLabelValues(reason).Inc()
	}
	after, err := c.opts.State.Usage(ctx)
	res.Freed = freed(before, after)
	return res, errors.Join(append(errs, err)...)
}

func freed(before, after Usage) uint64 {
	if after.Available <= before.Available {
		return 0
	}
	return after.Available - before.Available
}
