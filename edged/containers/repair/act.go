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

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/images"
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
	case len(rep.blobs) > 0, damaged && (len(rep.absent) > 0 || rep.documents):
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
	rep, err := r.verify(ctx, s)
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
		return r.conclude(ctx, s, r.repairLayers(ctx, rep))
	case fetch:
		r.damaged(s, rep.String())
		return r.fetch(ctx, s, rep)
	case replace:
		if rep.documents || len(rep.absent) > 0 {
			return r.compare(ctx, s, rep)
		}
		return r.replace(ctx, s, rep)
	}
	if rep.whole() {
		r.logUnrecorded(r.opts.Record.SetGood(s.ID))
	}
	return false, nil
}

// repairLayers puts layers right from their blobs.
func (r *Repairer) repairLayers(ctx context.Context, rep report) error {
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
	return l.repairFiles(ctx, plain, d.damage)
}

// conclude verifies an image after a repair, and reports the outcome.
func (r *Repairer) conclude(ctx context.Context, s Suspect, err error) (bool, error) {
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	rep, err := r.verify(ctx, s)
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	if !rep.sound() {
		return false, r.trouble(ctx, s, errors.New(rep.String()))
	}
	r.logUnrecorded(r.opts.Record.SetGood(s.ID)) // as far as can be seen
	r.repaired(s)
	return true, nil
}

// fetch brings blobs again: from an archive, else from the registry. Those that are proven wrong go first, since the
// runtime would take them for right.
func (r *Repairer) fetch(ctx context.Context, s Suspect, rep report) (bool, error) {
	r.logUnrecorded(r.opts.Record.SetDamaged(s.ID))
	bad := rep.blobs
	if err := r.discard(ctx, bad); err != nil {
		return false, r.trouble(ctx, s, err)
	}
	loaded, err := r.load(ctx, s)
	if err == nil && !loaded {
		rep, _, err = r.fetchMissing(ctx, s, rep)
	}
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	if !loaded {
		return r.brought(ctx, s, rep)
	}
	if id := r.idOf(ctx, s.Image); id != "" && id != s.ID {
		r.release(ctx, bad, heldBy)
		r.repaired(s) // the archive holds another image of that name
		return true, nil
	}
	rep, err = r.verify(ctx, s)
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	if len(rep.blobs) == 0 && !rep.documents {
		r.release(ctx, bad, heldBy)
	}
	switch {
	case len(rep.blobs) == 0 && len(rep.layers) > 0 && rep.unknown == "":
		return r.conclude(ctx, s, r.repairLayers(ctx, rep))
	case rep.whole():
		return r.conclude(ctx, s, nil)
	}
	// The runtime does not unpack a layer again that an archive has in another form: it has to forget the image for it.
	again, err := r.remove(ctx, s)
	if again { // its names went with it
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

// discard deletes blobs in the runtime, with their bytes. What they refer to is held.
func (r *Repairer) discard(ctx context.Context, digests []string) error {
	if len(digests) == 0 {
		return nil
	}
	if err := r.holdReferences(ctx, digests); err != nil {
		return err
	}
	for _, digest := range digests {
		if err := r.opts.Store.DeleteBlob(ctx, digest); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("damaged blob %s cannot be removed: %w", digest, err)
		}
	}
	return r.opts.Store.CollectGarbage(ctx, lookName)
}

// brought concludes a repair after what was lacking of an image has come.
func (r *Repairer) brought(ctx context.Context, s Suspect, rep report) (bool, error) {
	switch {
	case rep.whole():
		return r.conclude(ctx, s, nil)
	case !rep.sound():
		return false, r.trouble(ctx, s, errors.New(rep.String()))
	}
	return r.replace(ctx, s, rep)
}

// replace pulls or loads an image again that cannot be compared, once per boot.
func (r *Repairer) replace(ctx context.Context, s Suspect, rep report) (bool, error) {
	r.damaged(s, fmt.Sprintf("it does not start (%s); %s", s.Message, rep.unknown))
	if rep.foreign {
		return false, r.trouble(ctx, s, errForeign)
	}
	file, err := r.archiveOf(ctx, s)
	if err == nil && file == "" {
		err = r.pullNamed(ctx, s, cmp.Or(s.Reference, s.Image))
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

// compare makes the runtime fetch the blobs of an image that it has not kept, and compares the image with them. It is
// kept as it is if nothing is wrong with it.
func (r *Repairer) compare(ctx context.Context, s Suspect, rep report) (bool, error) {
	file, err := r.archiveOf(ctx, s)
	if err == nil && file != "" {
		return r.replace(ctx, s, rep)
	}
	changed := false
	if err == nil {
		rep, changed, err = r.fetchMissing(ctx, s, rep)
	}
	if err != nil {
		return false, r.trouble(ctx, s, fmt.Errorf("%s; %w", rep.unknown, err))
	}
	if changed || !rep.whole() {
		return r.brought(ctx, s, rep)
	}
	r.logUnrecorded(r.opts.Record.SetGood(s.ID))
	return false, nil
}

var (
	errHeld = errors.New("it was pulled again in this boot, and the runtime still has the damaged layers, for other " +
		"containers or images; restart or delete the pods that use them (edgecore images list says which)")
	errShared = errors.New("it can only be removed and pulled again, and it has names of several repositories on " +
		"this device, whose pods would lose it; remove it with crictl rmi when no pod needs it")
	errUsed = errors.New("it can only be removed and pulled again, and other containers are made of it, which keep " +
		"its layers; delete the pods that use it (edgecore images list says which)")
)

// shared reports whether an image has names of several repositories. Anyone can make an image that has the ID of
// another one, whose names would be removed with it. It is pure.
func shared(list []Image, id string) bool {
	repository := ""
	for _, i := range list {
		for _, name := range i.Names {
			if at := images.Repository(name); i.ID == id && at != repository {
				if repository != "" {
					return true
				}
				repository = at
			}
		}
	}
	return false
}

// remove removes an image, so that it is pulled again. It does so once per boot, and not while other containers are
// made of the image: its layers would stay, so nothing would be won, and a container of them could not be started again
// until the image has come.
func (r *Repairer) remove(ctx context.Context, s Suspect) (bool, error) {
	if r.opts.Record.Replaced(s.ID) {
		return false, r.trouble(ctx, s, errHeld)
	}
	used, err := r.opts.Runtime.ContainersOf(ctx, s.ID)
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	list, err := r.opts.Runtime.Images(ctx)
	if err != nil {
		return false, r.trouble(ctx, s, err)
	}
	if shared(list, s.ID) {
		return false, r.trouble(ctx, s, errShared)
	}
	if slices.ContainsFunc(used, func(id string) bool { return !slices.Contains(s.Dead, id) }) {
		return false, r.trouble(ctx, s, errUsed)
	}
	for _, id := range s.Dead {
		if err := r.opts.Runtime.RemoveContainer(ctx, id); err != nil {
			return false, r.trouble(ctx, s, fmt.Errorf("remove container %s: %w", id, err))
		}
	}
	if err := r.opts.Runtime.RemoveImage(ctx, s.ID); err != nil {
		return false, r.trouble(ctx, s, fmt.Errorf("remove image: %w", err))
	}
	r.logUnrecorded(r.opts.Record.SetReplaced(s.ID))
	r.event(s, v1.EventTypeNormal, EventRepaired,
		fmt.Sprintf("Image %q was damaged on this device and has been removed; it is pulled again", s.Image))
	return true, nil
}

var errNeverPull = errors.New("the pull policy of its container is Never")

// remedy is what a person can do.
func (r *Repairer) remedy(s Suspect) string {
	return fmt.Sprintf("Connect the device to the registry, or put an archive of the image (docker save %s) into %s; "+
		"the agent retries automatically.", s.Image, r.opts.Archives)
}

// damaged reports that an image is damaged.
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

func (r *Repairer) logUnrecorded(err error) {
	if err != nil {
		klog.V(2).InfoS("Checked images not recorded; they are checked again after a restart", "err", err)
	}
}
