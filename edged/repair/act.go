package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// step is what is to be done about an image.
type step int

const (
	// leave: it is intact, or it cannot be checked and the failure is no proof of damage.
	leave step = iota
	// mend puts layers right from their blobs.
	mend
	// fetch brings blobs again.
	fetch
	// replace brings the whole image again.
	replace
)

// plan decides what to do. replaced: the image was brought again in this boot; damaged: it is known to be damaged. It
// is pure.
func plan(rep report, suspicion Suspicion, replaced, damaged bool) step {
	switch {
	case len(rep.blobs) > 0, rep.unknown != "" && damaged:
		// or a blob that was found bad has gone, and has not come again
		return fetch
	case len(rep.layers) > 0:
		return mend
	case rep.unknown != "" && suspicion == Strong && !replaced:
		return replace
	}
	return leave
}

// repair examines an image, and says whether it can be started again. An error is a damage that stays, or may be there.
func (r *Repairer) repair(ctx context.Context, s Suspect, suspicion Suspicion) (bool, error) {
	rep, err := r.verify(ctx, s.ID)
	if err != nil {
		klog.V(2).InfoS("Image not verified", "image", s.Image, "err", err)
		return false, err
	}
	todo := plan(rep, suspicion, r.opts.Record.Replaced(s.ID), r.opts.Record.Damaged(s.ID))
	klog.V(2).InfoS("Checking an image after a failure", "image", s.Image, "failure", s.Message, "found", rep.String(),
		"step", todo)
	switch todo {
	case mend:
		r.damaged(s, rep.String())
		return r.conclude(ctx, s, r.mend(ctx, rep))
	case fetch:
		r.damaged(s, rep.String())
		return r.fetch(ctx, s, rep)
	case replace:
		r.damaged(s, fmt.Sprintf("it does not start (%s); %s", s.Message, rep.unknown))
		return r.replace(ctx, s)
	}
	if rep.whole() {
		r.note(r.opts.Record.SetGood(s.ID))
	}
	return false, nil
}

// mend puts layers right from their blobs.
func (r *Repairer) mend(ctx context.Context, rep report) error {
	for _, d := range rep.layers {
		if err := r.mendLayer(ctx, d); err != nil {
			return fmt.Errorf("layer %s: %w", short(d.blob), err)
		}
	}
	return nil
}

func (r *Repairer) mendLayer(ctx context.Context, d damagedLayer) error {
	if err := os.MkdirAll(filepath.Dir(d.dir), 0o700); err != nil {
		return err
	}
	l, err := openLayer(d.dir, d.bottom)
	if err != nil {
		return err
	}
	defer l.close()
	blob, err := r.opts.Store.ReadBlob(ctx, d.blob)
	if err != nil {
		return err
	}
	defer blob.Close()
	plain, err := unpacked(blob)
	if err != nil {
		return err
	}
	return l.mend(ctx, plain, d.damage)
}

// conclude verifies an image after a repair, and reports the outcome.
func (r *Repairer) conclude(ctx context.Context, s Suspect, err error) (bool, error) {
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	rep, err := r.verify(ctx, s.ID)
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	if !rep.sound() {
		return false, r.trouble(ctx, s, errors.New(rep.String()))
	}
	r.note(r.opts.Record.SetGood(s.ID)) // as far as can be seen
	r.repaired(s)
	return true, nil
}

// fetch brings blobs again: those that are proven wrong go first, since the runtime would take them for right.
func (r *Repairer) fetch(ctx context.Context, s Suspect, rep report) (bool, error) {
	if err := r.discard(ctx, rep.blobs); err != nil {
		return false, r.trouble(ctx, s, err)
	}
	r.note(r.opts.Record.SetDamaged(s.ID))
	loaded, err := r.load(ctx, s)
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	if !loaded {
		if err := r.pull(ctx, s); err != nil {
			return false, r.trouble(ctx, s, err)
		}
	}
	if id := r.idOf(ctx, s.Image); loaded && id != "" && id != s.ID {
		r.repaired(s) // the archive holds another image of that name
		return true, nil
	}
	after, err := r.verify(ctx, s.ID)
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	switch {
	case len(after.blobs) == 0 && len(after.layers) > 0 && after.unknown == "":
		return r.conclude(ctx, s, r.mend(ctx, after))
	case after.whole():
		return r.conclude(ctx, s, nil)
	}
	// The runtime does not fetch the blob of a layer that it has unpacked: it has to forget the image for that.
	again, err := r.remove(ctx, s)
	if again && loaded { // its names went with it
		if _, err := r.load(ctx, s); err != nil {
			return false, r.trouble(ctx, s, err)
		}
	}
	return again, err
}

// idOf is the id of the image that a name stands for; "" where that is not known.
func (r *Repairer) idOf(ctx context.Context, name string) string {
	list, err := r.opts.Runtime.Images(ctx)
	if err != nil {
		return ""
	}
	for _, i := range list {
		if slices.Contains(i.Names, name) {
			return i.ID
		}
	}
	return ""
}

// discard has the runtime forget blobs, and their bytes.
func (r *Repairer) discard(ctx context.Context, digests []string) error {
	if len(digests) == 0 {
		return nil
	}
	for _, digest := range digests {
		if err := r.opts.Store.DeleteBlob(ctx, digest); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("damaged blob %s cannot be removed: %w", digest, err)
		}
	}
	return r.opts.Store.CollectGarbage(ctx, lookName)
}

// replace pulls or loads an image again that cannot be compared, once per boot. The old one is removed only when there
// is a new one.
func (r *Repairer) replace(ctx context.Context, s Suspect) (bool, error) {
	file, err := r.archiveOf(ctx, s)
	if err == nil && file == "" {
		err = r.pull(ctx, s)
	}
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	again, err := r.remove(ctx, s)
	if file != "" && again {
		if err := r.opts.Load(ctx, file, s.Image); err != nil {
			return false, r.trouble(ctx, s, err)
		}
	}
	return again, err
}

var errHeld = errors.New("it was pulled again in this boot, and the runtime still has the damaged layers, for other " +
	"containers or images; restart or delete the pods that use them (edgecore images list says which)")

// remove removes an image, so that it is pulled again. It does so once per boot: layers that are in use are not removed
// with it.
func (r *Repairer) remove(ctx context.Context, s Suspect) (bool, error) {
	if r.opts.Record.Replaced(s.ID) {
		return false, r.trouble(ctx, s, errHeld)
	}
	for _, id := range s.Dead {
		if err := r.opts.Runtime.RemoveContainer(ctx, id); err != nil {
			return false, r.trouble(ctx, s, fmt.Errorf("remove container %s: %w", id, err))
		}
	}
	if err := r.opts.Runtime.RemoveImage(ctx, s.ID); err != nil {
		return false, r.trouble(ctx, s, fmt.Errorf("remove image: %w", err))
	}
	r.note(r.opts.Record.SetReplaced(s.ID))
	r.event(s, v1.EventTypeNormal, EventRepaired,
		fmt.Sprintf("Image %q was damaged on this device and has been removed; it is pulled again", s.Image))
	return true, nil
}

var errNeverPull = errors.New("the pull policy of its container is Never")

// pull asks the registry for an image that is here: it answers when it can be pulled again.
func (r *Repairer) pull(ctx context.Context, s Suspect) error {
	if s.Container != nil && s.Container.ImagePullPolicy == v1.PullNever {
		return errNeverPull
	}
	if err := r.opts.Pull(ctx, cmp.Or(s.Reference, s.Image), s.Secrets); err != nil {
		return fmt.Errorf("it cannot be pulled now: %w", err)
	}
	return nil
}

// remedy is what a person can do.
func (r *Repairer) remedy(s Suspect) string {
	return fmt.Sprintf("Connect the device to the registry, or put an archive of the image (docker save %s) into %s; "+
		"the agent retries automatically.", s.Image, r.opts.Archives)
}

// damaged tells that an image is damaged.
func (r *Repairer) damaged(s Suspect, what string) {
	klog.InfoS("Image is damaged and will be repaired", "image", s.Image, "imageID", s.ID, "damage", what)
	r.event(s, v1.EventTypeWarning, EventDamaged,
		fmt.Sprintf("Image %q is damaged on this device and will be repaired: %s", s.Image, what))
}

// trouble reports why an image stays damaged, for as long as it does.
func (r *Repairer) trouble(ctx context.Context, s Suspect, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.opts.Health.Set(health.ImageDamaged, s.Image, err.Error())
	r.event(s, v1.EventTypeWarning, EventDamaged,
		fmt.Sprintf("Image %q is damaged on this device and could not be repaired: %v. %s", s.Image, err, r.remedy(s)))
	return err
}

func (r *Repairer) repaired(s Suspect) {
	klog.InfoS("Damaged image repaired", "image", s.Image, "imageID", s.ID)
	r.event(s, v1.EventTypeNormal, EventRepaired,
		fmt.Sprintf("Image %q was damaged on this device and has been repaired", s.Image))
}

func (r *Repairer) event(s Suspect, kind, why, text string) {
	if s.Pod == nil {
		r.opts.Recorder.NodeEventf(kind, why, "%s", text)
		return
	}
	r.opts.Recorder.ContainerEventf(s.Pod, s.Container, kind, why, "%s", text)
}

func (r *Repairer) note(err error) {
	if err != nil {
		klog.V(2).InfoS("Checked images not recorded; they are checked again after a restart", "err", err)
	}
}
