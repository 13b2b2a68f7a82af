package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// republishAfter is how often a driver that wants that publishes a volume again, at most.
const republishAfter = 30 * time.Second

// Attributes that tell a driver about a pod.
const (
	keyPodName        = "csi.storage.k8s.io/pod.name"
	keyPodNamespace   = "csi.storage.k8s.io/pod.namespace"
	keyPodUID         = "csi.storage.k8s.io/pod.uid"
	keyServiceAccount = "csi.storage.k8s.io/serviceAccount.name"
	keyEphemeral      = "csi.storage.k8s.io/ephemeral"
	keyTokens         = "csi.storage.k8s.io/serviceAccount.tokens"
)

// Setup implements volume.Driver.
func (m *Manager) Setup(ctx context.Context, pod *v1.Pod, spec volume.Spec, dir string) (string, error) {
	r, err := ask(pod, spec, dir)
	if err != nil {
		return "", fmt.Errorf("kubernetes.io/csi: %w", err)
	}
	if v, ok := m.mountedAt(dir); ok && !v.needsWork(r) && !m.refreshDue(r, v) {
		return v.path, nil
	}
	release, err := m.locks.lock(ctx, r.driver, r.handle)
	if err != nil {
		return "", fmt.Errorf("kubernetes.io/csi: %w", err)
	}
	defer release()
	path, err := m.setUp(ctx, r)
	if err != nil {
		return "", fmt.Errorf("kubernetes.io/csi: %w", err)
	}
	if v, ok := m.mountedAt(dir); ok {
		m.upkeep(ctx, r, v)
	}
	return path, nil
}

// mountedAt returns what is known of the volume that is in place in a folder.
func (m *Manager) mountedAt(dir string) (mounted, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.volumes[dir]; v != nil && v.ready {
		return *v, true
	}
	return mounted{}, false
}

func (m *Manager) setMounted(dir string, v mounted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.volumes[dir]; old != nil {
		v.grown, v.told = max(v.grown, old.grown), max(v.told, old.told)
		if old.ready {
			v.looked = old.looked
		}
	}
	m.volumes[dir] = &v
}

// needsWork reports whether something is to be done for a volume that is in place.
func (v *mounted) needsWork(r *request) bool {
	return v.stale() || r.growth() > min(v.grown, v.told)
}

// stale reports whether a driver is to publish a volume again.
func (v *mounted) stale() bool {
	return v.record.Republish && time.Since(v.published) >= republishAfter
}

// setUp brings a volume to its pod, unless it is there.
func (m *Manager) setUp(ctx context.Context, r *request) (string, error) {
	rec, err := readRecord(r.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m.mount(ctx, r)
	case err != nil:
		return "", fmt.Errorf("%w; delete the pod to unmount it", err)
	case rec.Driver != r.driver || rec.Handle != r.handle:
		return "", fmt.Errorf("%s holds the volume %s of driver %s; delete the pod to unmount it", r.dir,
			rec.Handle, rec.Driver)
	}
	path := m.target(rec, r.pod.UID, r.dir)
	if !rec.Published || !inPlace(path, rec.Block) {
		return m.mount(ctx, r)
	}
	if _, ok := m.mountedAt(r.dir); !ok { // of an agent before this one
		m.setMounted(r.dir, r.mounted(rec, path))
	}
	m.noteInUse(r.dir, rec)
	return path, nil
}

// inPlace reports whether a volume is where it was published.
func inPlace(path string, block bool) bool {
	if block {
		return isDevice(path)
	}
	mounted, err := volume.IsMountpoint(path)
	return err == nil && mounted
}

func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeDevice != 0
}

// upkeep does what a volume in use wants. The pod has its volume, whatever comes of it.
func (m *Manager) upkeep(ctx context.Context, r *request, v mounted) {
	fault := func(reason string, err error) {
		if err != nil && ctx.Err() == nil && m.opts.Event != nil {
			m.opts.Event(r.pod, v1.EventTypeWarning, reason, "%v", err)
		}
	}
	if v.stale() {
		_, err := m.mount(ctx, r)
		if err != nil {
			err = fmt.Errorf("MountVolume.SetUp failed for volume %q : kubernetes.io/csi: %w", r.spec.Name, err)
		}
		fault(events.FailedMountVolume, err)
	}
	m.refreshClaim(ctx, r, v)
	if r.growth() > min(v.grown, v.told) {
		fault(reasonResizeFailed, m.grow(ctx, r, v))
	}
}

// mount does all that brings a volume to a pod. Each step may have been done before.
func (m *Manager) mount(ctx context.Context, r *request) (string, error) {
	d, err := m.driver(r.driver)
	if err != nil {
		return "", err
	}
	can, err := d.abilities(ctx)
	if err != nil {
		return "", err
	}
	how, known, err := m.driverInfo(ctx, r)
	if err != nil {
		return "", err
	}
	if err := m.checkAlone(r); err != nil {
		return "", err
	}
	rec := r.record(m.opts.NodeName)
	rec.Republish = how.republish
	if how.attach && known {
		rec.Attachment = attachmentOf(r.handle, r.driver, m.opts.NodeName)
		m.noteInUse(r.dir, rec) // before it is looked for: it is not taken away then
	}
	given, err := m.attached(ctx, r, &rec, how, known)
	if err != nil {
		return "", err
	}
	m.noteInUse(r.dir, rec)
	if err := m.checkReported(r.dir, rec); err != nil {
		return "", err
	}
	if was, err := readRecord(r.dir); err == nil {
		rec.Published = was.Published // it stays so while it is published again
	}
	if err := writeRecord(r.dir, rec); err != nil {
		return "", err
	}
	path, err := m.stageAndPublish(ctx, &bringing{request: r, driver: d, record: rec, can: can, how: how, given: given})
	if err != nil {
		return "", err
	}
	rec.Published = true
	if err := writeRecord(r.dir, rec); err != nil {
		return "", err
	}
	v := r.mounted(rec, path)
	v.published, v.looked = time.Now(), time.Now()
	m.setMounted(r.dir, v)
	return path, nil
}

// checkAlone refuses a volume that only one pod may have while another has it.
func (m *Manager) checkAlone(r *request) error {
	if !r.onePod() {
		return nil
	}
	users, err := m.users(r.driver, r.handle)
	if err != nil {
		return err
	}
	for _, dir := range users {
		if dir != r.dir {
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		}
	}
	return nil
}

// bringing is a volume on its way to a pod.
type bringing struct {
	*request
	driver *driver
	record record
	can    abilities
	how    driverInfo
	// given is what the attaching of the volume gave for its mounting.
	given map[string]string
}

// stageAndPublish stages and publishes a volume, and gives it to the pod's group.
func (m *Manager) stageAndPublish(ctx context.Context, b *bringing) (string, error) {
	byDriver, byNode := b.ownership(b.how.policy, b.can)
	group := ""
	if byDriver {
		group = strconv.FormatInt(*b.group(), 10)
	}
	capability := b.capability(b.can, group)
	staging := ""
	if b.can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] && b.mode == persistent {
		var err error
		if staging, err = m.stage(ctx, b, capability); err != nil {
			return "", err
		}
	}
	path := m.target(b.record, b.pod.UID, b.dir)
	if err := m.publish(ctx, b, capability, staging, path); err != nil {
		return "", err
	}
	if b.record.Block {
		if !isDevice(path) {
			return "", fmt.Errorf("driver %s published %s, which is not a device", b.record.Driver, path)
		}
		return path, nil
	}
	if byNode {
		if err := m.opts.Own(ctx, b.pod, path); err != nil {
			return "", fmt.Errorf("apply fsGroup: %w", err)
		}
	}
	return path, nil
}

// stage calls the driver to stage a volume, even if the volume is staged already for another pod or by another agent:
// the driver answers at once then, and only it can know.
func (m *Manager) stage(ctx context.Context, b *bringing, capability *csi.VolumeCapability) (string, error) {
	staging, home := m.staging(b.record)
	if err := os.MkdirAll(home, 0o750); err != nil {
		return "", err
	}
	if err := writeRecord(home, record{
		Driver: b.record.Driver,
		Handle: b.record.Handle,
		Name:   b.record.Name,
		Block:  b.record.Block,
	}); err != nil {
		return "", err
	}
	if err := os.MkdirAll(staging, 0o750); err != nil {
		return "", err
	}
	secrets, err := m.secrets(ctx, b.stageSecret)
	if err != nil {
		return "", err
	}
	err = b.driver.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: b.handle, PublishContext: b.given, StagingTargetPath: staging, VolumeCapability: capability,
			Secrets: secrets, VolumeContext: b.attributes,
		})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("NodeStageVolume: %w", err)
	}
	return staging, nil
}

func (m *Manager) publish(
	ctx context.Context, b *bringing, capability *csi.VolumeCapability, staging, target string,
) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	secrets, err := m.secrets(ctx, b.publishSecret)
	if err != nil {
		return err
	}
	attributes, err := m.attributes(ctx, b, &secrets)
	if err != nil {
		return err
	}
	err = b.driver.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId:          b.handle,
			PublishContext:    b.given,
			StagingTargetPath: staging,
			TargetPath:        target,
			VolumeCapability:  capability,
			Readonly:          b.readOnly,
			Secrets:           secrets,
			VolumeContext:     attributes,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("NodePublishVolume: %w", err)
	}
	return nil
}

// attributes are the volume context of NodePublishVolume; tokens may go to its secrets.
func (m *Manager) attributes(ctx context.Context, b *bringing, secrets *map[string]string) (map[string]string, error) {
	out := maps.Clone(b.attributes)
	if out == nil {
		out = map[string]string{}
	}
	if b.how.podInfo {
		out[keyPodName], out[keyPodNamespace], out[keyPodUID] = b.pod.Name, b.pod.Namespace, string(b.pod.UID)
		out[keyServiceAccount], out[keyEphemeral] = b.pod.Spec.ServiceAccountName,
			strconv.FormatBool(b.mode == ephemeral)
	}
	if len(b.how.tokens) == 0 {
		return out, nil
	}
	tokens := map[string]authenticationv1.TokenRequestStatus{}
	for _, t := range b.how.tokens {
		seconds := int64(0)
		if t.ExpirationSeconds != nil {
			seconds = *t.ExpirationSeconds
		}
		token, err := m.opts.Tokens.PodToken(ctx, b.pod, t.Audience, seconds)
		if err != nil {
			return nil, fmt.Errorf("token for driver %s: %w", b.record.Driver, err)
		}
		tokens[t.Audience] = *token
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return nil, err
	}
	if b.how.tokensAsSecrets {
		if *secrets == nil {
			*secrets = map[string]string{}
		}
		(*secrets)[keyTokens] = string(text)
		return out, nil
	}
	out[keyTokens] = string(text)
	return out, nil
}

// secrets reads what a driver is to be given; none for nil.
func (m *Manager) secrets(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := m.opts.Objects.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("failed to get secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(secret.Data))
	for k, v := range secret.Data {
		out[k] = string(v)
	}
	return out, nil
}
